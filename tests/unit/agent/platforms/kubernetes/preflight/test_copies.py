"""The copies that a throw-away sidecar loads, and the verdicts on them."""

import base64
from typing import Any

from governor.agent.platforms.kubernetes.preflight.copies import Copies, attributed, make_copies, with_denied
from governor.agent.verification.preflight_plan import PreflightReading, judge
from governor.domain.documents import ResourceRef, resource_ref
from governor.domain.reports import State
from governor.values.trees import Manifest

APP = "orders-preflight-1a2b3c4d"


def component(name: str, type_: str = "state.redis", version: str = "v1", **more: Any) -> Manifest:
    spec = {"type": type_, "version": version, "metadata": more.pop("metadata", [])}
    metadata = {"name": name, "namespace": "shop", "labels": {"team": "a"}}
    return {"apiVersion": "dapr.io/v1alpha1", "kind": "Component", "metadata": metadata, "spec": spec, **more}


def configuration(name: str, **spec: Any) -> Manifest:
    metadata = {"name": name, "namespace": "shop"}
    return {"apiVersion": "dapr.io/v1alpha1", "kind": "Configuration", "metadata": metadata, "spec": spec}


def copies(
    *loaded: Manifest,
    live: tuple[Manifest, ...] = (),
    changed: tuple[str, ...] = ("store",),
    secrets: dict[ResourceRef, Manifest] | None = None,
) -> Copies:
    by_ref = {resource_ref(each, "shop"): each for each in loaded}
    return make_copies([ref for ref in by_ref if ref.name in changed], by_ref, secrets or {}, live, APP)


def names(found: Copies) -> set[str]:
    return {each["metadata"]["name"] for each in found.plan.copies}


def tried(found: Copies) -> Manifest:
    (copy,) = found.plan.tried.values()
    return copy


def test_a_copy_has_a_name_of_its_own_and_only_the_throw_away_sidecar_loads_it() -> None:
    found = tried(copies(component("store")))
    assert found["metadata"] == {"name": "store-1a2b3c4d", "namespace": "shop"}
    assert found["scopes"] == [APP]


def test_the_name_of_a_copy_is_never_too_long() -> None:
    found = tried(copies(component("s" * 253), changed=("s" * 253,)))
    assert len(found["metadata"]["name"]) == 253


def test_a_live_component_without_scopes_is_denied_and_the_copy_is_not() -> None:
    live = (
        component("store"),
        component("scoped", "pubsub.kafka", scopes=["orders"]),
        component("in", "bindings.cron"),
    )
    found = copies(component("store"), live=live)
    assert found.denied[1:] == ("bindings.cron/v1", "state.redis/v1")
    assert tried(found)["spec"]["version"] == "V1"


def test_a_copy_that_is_like_no_live_component_keeps_its_version() -> None:
    live = (component("store", version="v2"), component("old", version=""), component("other", "state.mysql"))
    found = copies(component("store"), live=live)
    assert tried(found)["spec"]["version"] == "v1"
    assert "state.redis/" not in found.denied


def test_without_a_version_a_copy_has_the_first_one_because_a_deny_list_denies_the_others() -> None:
    found = copies(component("store", version=""))
    assert tried(found)["spec"]["version"] == "v1"
    assert found.denied


def test_if_every_spelling_is_taken_nothing_is_tried() -> None:
    live = tuple(component(f"c{number}", version=version) for number, version in enumerate(("v2", "V2")))
    found = copies(component("store", version="v2"), live=live)
    assert (found.plan.tried, found.secrets) == ({}, ())
    (verdict,) = found.verdicts_on_originals(judge(found.plan, PreflightReading(), "")).values()
    assert verdict.text.startswith("not tried: Components without scopes use every spelling")


def test_a_secret_store_is_copied_with_the_components_that_read_from_it() -> None:
    vault = component("vault", "secretstores.hashicorp.vault", scopes=["orders"])
    found = copies(component("store", auth={"secretStore": "vault"}), vault)
    assert names(found) == {"store-1a2b3c4d", "vault-1a2b3c4d", APP}
    assert tried(found)["auth"] == {"secretStore": "vault-1a2b3c4d"}
    assert tried(copies(component("store", auth={"secretStore": "kubernetes"})))["auth"] == {
        "secretStore": "kubernetes"
    }


def test_the_pipelines_of_a_configuration_name_the_copies_of_middleware_and_their_versions() -> None:
    limit = component("limit", "middleware.http.ratelimit")
    handlers = [{"name": "limit", "type": "middleware.http.ratelimit"}, {"name": "other", "type": "middleware.http.x"}]
    settings = configuration("settings", httpPipeline={"handlers": handlers})
    found = copies(settings, limit, live=(limit,), changed=("settings",))
    (copied, other) = tried(found)["spec"]["httpPipeline"]["handlers"]
    assert (copied["name"], copied["version"]) == ("limit-1a2b3c4d", "V1")
    assert other == handlers[1]
    assert names(found) == {"settings-1a2b3c4d", "limit-1a2b3c4d"}


def test_secrets_of_the_delivery_are_copied_and_those_of_others_are_referred_to() -> None:
    items = [
        {"name": "redisPassword", "secretKeyRef": {"name": "component-store-abc", "key": "redisPassword"}},
        {"name": "redisUsername", "secretKeyRef": {"name": "foreign", "key": "user"}},
    ]
    store = component("store", metadata=items)
    data = {"redisPassword": base64.b64encode(b"pw").decode()}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "component-store-abc", "namespace": "shop"},
        "data": data,
    }
    found = copies(store, component("unused"), secrets={resource_ref(store, "shop"): secret})
    assert [each["metadata"]["name"] for each in found.secrets] == [f"{APP}-0"]
    assert found.secrets[0]["data"] == data
    references = [each["secretKeyRef"]["name"] for each in tried(found)["spec"]["metadata"]]
    assert references == [f"{APP}-0", "foreign"]


def test_an_error_of_the_copy_is_told_in_terms_of_the_original() -> None:
    found = copies(component("store"), live=(component("store"),))
    error = "process component store-1a2b3c4d error: init of store-1a2b3c4d (state.redis/V1) failed"
    verdicts = found.verdicts_on_originals(judge(found.plan, PreflightReading(exit_message=error), ""))
    ((ref, verdict),) = verdicts.items()
    assert (ref.name, verdict.state) == ("store", State.FAILED)
    assert verdict.text == "process component store error: init of store (state.redis/v1) failed"


def test_an_exit_because_of_a_live_resource_is_inconclusive() -> None:
    dangling = component("live", metadata=[{"name": "p", "secretKeyRef": {"name": "missing", "key": "k"}}])
    found = copies(component("store"), live=(dangling,))
    error = 'failed to load components: Secret "missing" not found'
    (verdict,) = found.verdicts_on_originals(judge(found.plan, PreflightReading(exit_message=error), "")).values()
    assert verdict.state is State.RECEIVED
    assert verdict.text.startswith("inconclusive: another resource of the namespace")


def test_a_reader_of_another_owner_fails_the_store_that_it_reads_from() -> None:
    vault = component("vault", "secretstores.hashicorp.vault")
    reader = component("foreign", auth={"secretStore": "vault"}, scopes=["orders"])
    found = copies(vault, reader, component("store"), live=(reader,), changed=("vault", "store"))
    error = "process component foreign-1a2b3c4d error: no such secret"
    verdicts = found.verdicts_on_originals(judge(found.plan, PreflightReading(exit_message=error), ""))
    own = attributed(verdicts, [resource_ref(each, "shop") for each in (vault, component("store"))], [reader])
    assert {ref.name: each.state for ref, each in own.items()} == {"vault": State.FAILED, "store": State.RECEIVED}
    assert "Component/shop/foreign of another owner" in own[resource_ref(vault, "shop")].text


def test_what_a_configuration_denies_already_stays_denied() -> None:
    settings = configuration("settings", components={"deny": ["bindings.smtp"]})
    assert with_denied(settings, ("a/v1",))["spec"]["components"] == {"deny": ["bindings.smtp", "a/v1"]}
