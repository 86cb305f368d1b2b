"""Documents as objects, and generated leaves of them."""

from typing import Any

import msgspec
import pytest

from governor.errors import GovernorError, Kind
from governor.reconciler.render.documents import checked
from governor.reconciler.render.generated import Recording, keep, read_recording, require_leaves
from governor.reconciler.render.request import Document, Hook, Rendered
from governor.values.secret import Secret

NOTHING = Recording(1)


def rendered(*objects: Any) -> Rendered:
    return Rendered((), tuple(Document("a.yaml", each) for each in objects), ())


def thing(name: str, kind: str = "Thing", **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **fields}


def test_lists_are_flattened_and_empty_documents_dropped() -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [thing("a"), thing("b"), None]}
    found = checked(rendered(listed, None, {}, thing("c")))
    assert [each.object["metadata"]["name"] for each in found.objects] == ["a", "b", "c"]


def test_items_of_a_list_of_one_kind_may_leave_out_their_kind() -> None:
    bare = {"metadata": {"name": "a"}}
    listed = {"apiVersion": "example.com/v1", "kind": "ThingList", "items": [bare, thing("b", "Other")]}
    found = [each.object for each in checked(rendered(listed)).objects]
    assert found == [{"apiVersion": "example.com/v1", "kind": "Thing", **bare}, thing("b", "Other")]


def test_of_copies_of_a_definition_the_first_counts() -> None:
    copies = [thing("a", "Definition", n=number) for number in (1, 2)]
    documents = tuple(Document(f"{number}.yaml", each) for number, each in enumerate([*copies, thing("b")]))
    assert [each.source for each in checked(Rendered(documents, (), ())).crds] == ["0.yaml", "2.yaml"]


def workload(kind: str, container: dict[str, Any], **pod: Any) -> dict[str, Any]:
    api_version = {"Pod": "v1", "CronJob": "batch/v1", "Deployment": "apps/v1"}[kind]
    spec: dict[str, Any] = {"containers": [container], **pod}
    template = {"template": {"spec": spec}}
    nested = {"Pod": spec, "CronJob": {"jobTemplate": {"spec": template}}, "Deployment": template}[kind]
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "a"}, "spec": nested}


READ = [{"name": "A"}, {"name": "B", "value": "$(A)"}, {"name": "A"}]
READ_BY_ITSELF = [{"name": "A"}, {"name": "A", "value": "$(A):b"}]
REPEATED: dict[str, tuple[list[dict[str, str]], list[dict[str, str]]]] = {
    "hidden": ([{"name": "A", "value": "1"}, {"name": "B"}, {"name": "A"}], [{"name": "B"}, {"name": "A"}]),
    "equal": ([{"name": "A"}, {"name": "A"}], [{"name": "A"}]),
    "read in between": (READ, READ),
    "read by itself": (READ_BY_ITSELF, READ_BY_ITSELF),
}


@pytest.mark.parametrize("kind", ["Pod", "Deployment", "CronJob"])
@pytest.mark.parametrize("case", REPEATED)
def test_variables_that_a_later_one_hides_are_left_out(kind: str, case: str) -> None:
    given, expected = REPEATED[case]
    (found,) = checked(rendered(workload(kind, {"name": "c", "env": given}))).objects
    assert found.object == workload(kind, {"name": "c", "env": expected})


def test_equal_ports_and_pull_secrets_are_listed_once() -> None:
    port, other, secret = {"containerPort": 80}, {"containerPort": 80, "name": "http"}, {"name": "registry"}
    repeated = workload("Pod", {"name": "c", "ports": [port, port, other]}, imagePullSecrets=[secret, secret])
    hook = Hook("h.yaml", repeated, ("pre-install",), 0, ())
    found = checked(Rendered((), (Document("a.yaml", repeated),), (hook,)))
    expected = workload("Pod", {"name": "c", "ports": [port, other]}, imagePullSecrets=[secret])
    assert [each.object for each in (*found.objects, *found.hooks)] == [expected, expected]


@pytest.mark.parametrize("spec", [None, [], {"containers": None}, {"containers": [1, {"env": "text", "ports": None}]}])
def test_odd_pods_are_left_to_the_api_server(spec: Any) -> None:
    odd = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}
    assert [each.object for each in checked(rendered(odd)).objects] == [odd]


BAD = {
    "a text": ("text", "is not an object"),
    "no kind": ({"apiVersion": "v1", "metadata": {"name": "a"}}, "has no kind"),
    "nothing": ({"a": 1}, "has no apiVersion and no kind and no metadata.name"),
    "an odd name": (thing("a") | {"metadata": {"name": 1}}, "has no metadata.name"),
    "odd metadata": (thing("a") | {"metadata": []}, "has no metadata.name"),
    "a generated name": (
        {"apiVersion": "v1", "kind": "Job", "metadata": {"generateName": "a-"}},
        "generateName is not",
    ),
    "an item": ({"kind": "List", "items": [1]}, "is not an object"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_object_is_invalid_and_its_file_named(case: str) -> None:
    value, expected = BAD[case]
    with pytest.raises(GovernorError, match=f"a.yaml: .*{expected}") as caught:
        checked(rendered(value))
    assert caught.value.kind is Kind.INVALID


def secret(password: str, **fields: Any) -> dict[str, Any]:
    return thing("s", "Secret", data={"password": password, "user": "u"}, **fields)


def test_leaves_that_differ_are_kept_from_the_recording() -> None:
    first = keep(rendered(secret("1")), rendered(secret("2")), NOTHING)
    assert first.objects[0].object == secret("1")
    assert first.recording is not None
    again = keep(rendered(secret("3")), rendered(secret("4")), read_recording(first.recording))
    assert again.objects == first.objects
    assert again.recording == first.recording
    fixed = keep(rendered(secret("5")), rendered(secret("5")), read_recording(first.recording))
    assert fixed.objects[0].object == secret("5")
    assert fixed.recording is None


def test_only_entries_of_secrets_and_config_maps_are_kept() -> None:
    first = keep(rendered(thing("a", data={"x": "1"})), rendered(thing("a", data={"x": "2"})), NOTHING)
    assert first.recording is None
    labelled = [secret("1", type=kind) for kind in ("1", "2", "3")]
    kept = keep(rendered(labelled[0]), rendered(labelled[1]), NOTHING)
    assert kept.recording is None
    config = [thing("c", "ConfigMap", data={"x": each}) for each in "123"]
    once = keep(rendered(config[0]), rendered(config[1]), NOTHING)
    assert keep(rendered(config[2]), rendered(config[1]), read_recording(once.recording)).objects == once.objects


def test_generated_leaves_of_hooks_are_kept_too() -> None:
    def hooked(password: str) -> Rendered:
        return Rendered((), (), (Hook("a.yaml", secret(password), ("pre-install",), 0, ()),))

    first = keep(hooked("1"), hooked("2"), NOTHING)
    assert keep(hooked("3"), hooked("4"), read_recording(first.recording)).hooks == first.hooks


def test_recordings_that_cannot_be_used_are_explained() -> None:
    for text, kind in (("no", Kind.INVALID), ('{"version": 2}', Kind.UNIMPLEMENTED)):
        with pytest.raises(GovernorError, match="the recording of an earlier rendering") as caught:
            read_recording(Secret(text))
        assert caught.value.kind is kind
    require_leaves(NOTHING)
    with pytest.raises(GovernorError, match="was recorded by governor-renderer"):
        require_leaves(read_recording(Secret('{"version": 1, "calls": {"a": 1}}')))


def test_recorded_calls_stay_in_the_recording() -> None:
    first = rendered(secret("1"))
    recorded = msgspec.structs.replace(first, recording=Secret('{"version":1,"now":"t","calls":{"a":[1]}}'))
    kept = keep(recorded, rendered(secret("2")), Recording(1, leaves={"Secret//s/data/password": "old"}))
    assert kept.objects[0].object == secret("old")
    found = read_recording(kept.recording)
    assert (found.now, dict(found.leaves)) == ("t", {"Secret//s/data/password": "old"})
    assert list(found.calls) == ["a"]
