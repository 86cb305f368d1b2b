"""Documents as objects, and generated leaves of them."""

from typing import Any

import pytest

from governor.errors import GovernorError, Kind
from governor.reconciler.render.documents import checked
from governor.reconciler.render.generated import keep
from governor.reconciler.render.request import Document, Hook, Rendered
from governor.values.secret import Secret


def rendered(*objects: Any) -> Rendered:
    return Rendered((), tuple(Document("a.yaml", each) for each in objects), ())


def thing(name: str, kind: str = "Thing", **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **fields}


def test_lists_are_flattened_and_empty_documents_dropped() -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [thing("a"), thing("b"), None]}
    found = checked(rendered(listed, None, {}, thing("c")))
    assert [each.object["metadata"]["name"] for each in found.objects] == ["a", "b", "c"]


BAD = {
    "a text": ("text", "is not an object"),
    "no kind": ({"apiVersion": "v1", "metadata": {"name": "a"}}, "has no kind"),
    "nothing": ({"a": 1}, "has no apiVersion and no kind and no metadata.name"),
    "an odd name": (thing("a") | {"metadata": {"name": 1}}, "has no metadata.name"),
    "odd metadata": (thing("a") | {"metadata": []}, "has no metadata.name"),
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
    first = keep(rendered(secret("1")), rendered(secret("2")), None)
    assert first.objects[0].object == secret("1")
    assert first.recording is not None
    again = keep(rendered(secret("3")), rendered(secret("4")), first.recording)
    assert again.objects == first.objects
    assert again.recording == first.recording
    fixed = keep(rendered(secret("5")), rendered(secret("5")), first.recording)
    assert fixed.objects[0].object == secret("5")
    assert fixed.recording is None


def test_only_entries_of_secrets_and_config_maps_are_kept() -> None:
    first = keep(rendered(thing("a", data={"x": "1"})), rendered(thing("a", data={"x": "2"})), None)
    assert first.recording is None
    labelled = [secret("1", type=kind) for kind in ("1", "2", "3")]
    kept = keep(rendered(labelled[0]), rendered(labelled[1]), None)
    assert kept.recording is None
    config = [thing("c", "ConfigMap", data={"x": each}) for each in "123"]
    once = keep(rendered(config[0]), rendered(config[1]), None)
    assert keep(rendered(config[2]), rendered(config[1]), once.recording).objects == once.objects


def test_generated_leaves_of_hooks_are_kept_too() -> None:
    def hooked(password: str) -> Rendered:
        return Rendered((), (), (Hook("a.yaml", secret(password), ("pre-install",), 0, ()),))

    first = keep(hooked("1"), hooked("2"), None)
    assert keep(hooked("3"), hooked("4"), first.recording).hooks == first.hooks


def test_an_unreadable_recording_is_invalid() -> None:
    with pytest.raises(GovernorError, match="delete it to generate new values"):
        keep(rendered(), rendered(), Secret("no"))
