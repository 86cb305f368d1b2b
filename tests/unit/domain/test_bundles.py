"""Compiling a bundle, where each error points at the profile field that caused it; what restrains a delivery."""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from governor.domain.bundles import Delivery, compile_bundle, refs
from governor.domain.documents import (
    API_VERSION,
    ApplyPolicy,
    Profile,
    ResourceRef,
    Runtime,
    Strategy,
    WindowScope,
    read_document,
)
from governor.domain.layering import Layer
from governor.domain.windows import HELD, WAITING_FOR_WINDOW, Hold, Restraint, Window
from governor.errors import Detail, GovernorError, Kind
from governor.values.digest import digest
from governor.values.secret import Sealed


def runtime(name: str = "r1", namespaces: tuple[str, ...] = ("default",), **labels: str) -> Runtime:
    metadata = {"name": name, "labels": labels}
    spec = {"platform": "local", "namespaces": list(namespaces)}
    document = read_document({"apiVersion": API_VERSION, "kind": "Runtime", "metadata": metadata, "spec": spec})
    assert isinstance(document, Runtime)
    return document


def layer(name: str, *resources: Any, **spec: Any) -> Layer:
    contents = {"selector": {}, "resources": list(resources), **spec}
    document = read_document(
        {"apiVersion": API_VERSION, "kind": "Profile", "metadata": {"name": name}, "spec": contents}
    )
    assert isinstance(document, Profile)
    return Layer(document, spec.get("apply", {}))


def component(name: str, namespace: str | None = None, **values: Any) -> dict[str, Any]:
    metadata = {"name": name} if namespace is None else {"name": name, "namespace": namespace}
    items = [{"name": key, "value": value} for key, value in values.items()]
    return {"kind": "Component", "metadata": metadata, "spec": {"metadata": items}}


def rejection(of: Runtime, *layers: Layer) -> GovernorError:
    with pytest.raises(GovernorError) as caught:
        compile_bundle(of, layers)
    return caught.value


def test_a_bundle_has_the_layers_that_select_the_runtime_with_variables_substituted() -> None:
    layers = [
        layer("all", component("store", redisHost="${runtime.labels.region}.redis", keyPrefix="${runtime.id}")),
        layer("eu", component("store", ttl=5), selector={"matchLabels": {"region": "eu"}}),
        layer("us", component("store", ttl=9), selector={"matchLabels": {"region": "us"}}),
        layer("other", component("extra"), selector={"runtime": "r2"}),
    ]
    bundle, folded = compile_bundle(runtime(region="eu"), layers)
    expected = component("store", "default", redisHost="eu.redis", keyPrefix="r1", ttl=5)
    assert bundle.resources == (expected,)
    assert refs(bundle.resources) == tuple(folded.resources) == (ResourceRef("Component", "default", "store"),)


def test_a_runtime_that_no_profile_selects_has_an_empty_bundle() -> None:
    bundle, _ = compile_bundle(runtime(), [layer("other", component("x"), selector={"runtime": "r2"})])
    assert (bundle.resources, bundle.apply, bundle.digest) == ((), ApplyPolicy(), digest([]))


def test_the_digest_covers_the_resources_and_nothing_else() -> None:
    one, _ = compile_bundle(runtime(), [layer("p", component("a"), component("b"))])
    same, _ = compile_bundle(
        runtime("r2", region="eu"),
        [layer("q", component("b"), apply={"strategy": "rolling"}, priority=7), layer("r", component("a"))],
    )
    other, _ = compile_bundle(runtime(), [layer("p", component("a"), component("b", x=1))])
    assert one.digest == same.digest == digest(list(one.resources))
    assert other.digest != one.digest
    assert same.apply == ApplyPolicy(strategy=Strategy.ROLLING)


def test_sealed_values_stay_sealed_and_the_digest_covers_their_plain_text() -> None:
    bundles = [
        compile_bundle(runtime(), [layer("p", component("a", password=Sealed(box, mac)))])[0]
        for box, mac in (("box", "mac"), ("sealed again", "mac"), ("box", "other"))
    ]
    assert bundles[0].resources[0]["spec"]["metadata"][0]["value"] == Sealed("box", "mac")
    assert bundles[0].digest == bundles[1].digest != bundles[2].digest


def test_the_order_of_the_profiles_does_not_matter() -> None:
    layers = [layer("a", component("x", p=1)), layer("b", component("x", q=2)), layer("c", component("y"))]
    bundles = [compile_bundle(runtime(), order)[0] for order in itertools.permutations(layers)]
    assert all(bundle == bundles[0] for bundle in bundles)


# -- rejections ----------------------------------------------------------------------------------------------------


def test_conflicting_profiles_of_equal_priority_are_rejected_at_the_field() -> None:
    error = rejection(
        runtime(),
        layer("a", component("store", redisHost="one"), priority=3),
        layer("b", component("other"), component("store", port=1, redisHost="two"), priority=3),
    )
    assert (error.kind, error.code) == (Kind.CONFLICT, "layers-conflict")
    reason = (
        "Component/default/store: profiles 'a' and 'b' conflict at equal priority 3; give one of them a higher priority"
    )
    path = "spec.resources[1].spec.metadata[redisHost].value"
    assert error.details == (Detail(reason=reason, document="Profile/b", path=path),)


def test_a_removal_that_conflicts_with_a_profile_of_equal_priority_is_rejected_at_the_removal() -> None:
    removals = [
        {"kind": "Component", "name": "store", "namespace": "other"},
        {"kind": "Component", "name": "store"},
    ]
    of = runtime(namespaces=("default", "other"))
    error = rejection(of, layer("a", component("store")), layer("b", removals=removals))
    assert [(detail.document, detail.path) for detail in error.details] == [("Profile/b", "spec.removals[1]")]


def test_conflicting_apply_policies_of_equal_priority_are_rejected_at_the_field() -> None:
    error = rejection(runtime(), layer("a", apply={"strategy": "reload"}), layer("b", apply={"strategy": "rolling"}))
    assert [(detail.document, detail.path) for detail in error.details] == [("Profile/b", "spec.apply.strategy")]


def test_an_unknown_variable_is_rejected_at_its_profile_field() -> None:
    error = rejection(
        runtime(),
        layer("low", component("store", a="1", b="2", c="3")),
        layer("high", component("store", c="${runtime.zone}"), priority=1),
    )
    assert (error.kind, error.code) == (Kind.INVALID, "variable-unknown")
    (detail,) = error.details
    assert (detail.document, detail.path) == ("Profile/high", "spec.resources[0].spec.metadata[c].value")
    assert detail.reason.startswith("Component/default/store: unknown variable ${runtime.zone}")


def test_all_unknown_variables_of_a_runtime_are_reported() -> None:
    error = rejection(runtime(), layer("p", component("a", x="${runtime.x}"), component("b", x="${runtime.labels.y}")))
    assert [detail.path for detail in error.details] == [
        "spec.resources[0].spec.metadata[x].value",
        "spec.resources[1].spec.metadata[x].value",
    ]


def test_a_resource_outside_the_runtimes_namespaces_is_rejected() -> None:
    error = rejection(runtime(namespaces=("a", "b")), layer("p", component("x", "b"), component("x", "c")))
    assert (error.kind, error.code) == (Kind.INVALID, "namespace-foreign")
    (detail,) = error.details
    assert (detail.document, detail.path) == ("Profile/p", "spec.resources[1].metadata.namespace")
    assert detail.reason == "Component/c/x: runtime 'r1' has only the namespaces a, b"


def test_a_resource_without_a_namespace_gets_the_runtimes_first_one() -> None:
    bundle, _ = compile_bundle(runtime(namespaces=("a", "b")), [layer("p", component("x"))])
    assert refs(bundle.resources) == (ResourceRef("Component", "a", "x"),)


# -- what restrains an agent ---------------------------------------------------------------------------------------

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NIGHT = Window("22:00", 240)
HOLD = Hold(NOON + timedelta(hours=1), "inventory")


def delivery(scope: WindowScope, *windows: Window, hold: Hold | None = None) -> Delivery:
    return Delivery("r1", 1, 1, 1, "d1", (), (), ApplyPolicy(windows=scope), windows=windows, hold=hold)


def reason(restraint: Restraint | None) -> str:
    return restraint.reason if restraint else ""


def test_windows_and_a_hold_do_not_distinguish_bundles() -> None:
    restrained = msgspec.structs.replace(runtime().spec, windows=(NIGHT,), hold=HOLD)
    bundle, _ = compile_bundle(msgspec.structs.replace(runtime(), spec=restrained), [layer("p", component("a"))])
    plain, _ = compile_bundle(runtime(), [layer("p", component("a"))])
    assert bundle == plain


@pytest.mark.parametrize(
    ("scope", "hours", "write", "restart"),
    [
        (WindowScope.RESTARTS, 0, HELD, HELD),
        (WindowScope.RESTARTS, 1, "", WAITING_FOR_WINDOW),
        (WindowScope.RESTARTS, 10, "", ""),
        (WindowScope.ALL, 0, HELD, HELD),
        (WindowScope.ALL, 1, WAITING_FOR_WINDOW, WAITING_FOR_WINDOW),
        (WindowScope.ALL, 10, "", ""),
        (WindowScope.ALL, 14, WAITING_FOR_WINDOW, WAITING_FOR_WINDOW),
    ],
)
def test_a_hold_restrains_everything_and_windows_restrain_what_the_policy_says(
    scope: WindowScope, hours: int, write: str, restart: str
) -> None:
    given, now = delivery(scope, NIGHT, hold=HOLD), NOON + timedelta(hours=hours)
    assert (reason(given.write_restraint(now)), reason(given.restart_restraint(now))) == (write, restart)


def test_without_windows_and_hold_nothing_restrains() -> None:
    given = delivery(WindowScope.ALL)
    assert given.write_restraint(NOON) is given.restart_restraint(NOON) is None


def test_an_expired_hold_is_not_in_force() -> None:
    given = delivery(WindowScope.RESTARTS, NIGHT, hold=HOLD)
    assert given.in_force(NOON) == given
    assert given.in_force(HOLD.until) == delivery(WindowScope.RESTARTS, NIGHT)
