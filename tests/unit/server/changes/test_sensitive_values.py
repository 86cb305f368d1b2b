"""Sealing sensitive values, and keeping masked ones."""

from typing import Any

from governor.server.changes.sensitive_values import seal_document
from governor.server.store.sealer import KEY_BYTES, Sealer
from governor.values.secret import Sealed

SEALER = Sealer(b"k" * KEY_BYTES)


def component(*fields: tuple[str, Any], name: str = "store") -> dict[str, Any]:
    items = [{"name": key, "value": value} for key, value in fields]
    spec = {"type": "state.redis", "version": "v1", "metadata": items}
    return {"apiVersion": "dapr.io/v1alpha1", "kind": "Component", "metadata": {"name": name}, "spec": spec}


def profile(*resources: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "Profile", "metadata": {"name": "p"}, "spec": {"selector": {}, "resources": list(resources)}}


def seal(new: dict[str, Any], stored: dict[str, Any] | None = None) -> dict[str, Any]:
    sealed, problems = seal_document(new, stored, SEALER)
    assert problems == []
    return sealed


def value(tree: dict[str, Any], name: str, resource: int = 0) -> Any:
    fields = tree["spec"]["resources"][resource]["spec"]["metadata"]
    return next(field["value"] for field in fields if field["name"] == name)


def test_only_sensitive_values_are_sealed() -> None:
    sealed = seal(profile(component(("redisHost", "a:1"), ("redisPassword", "pw"))))
    assert value(sealed, "redisHost") == "a:1"
    assert SEALER.open(value(sealed, "redisPassword")) == "pw"


def test_a_mask_keeps_the_stored_value_of_a_moved_item() -> None:
    stored = seal(profile(component(("redisHost", "a:1"), ("redisPassword", "pw"))))
    moved = profile(component(name="new"), component(("redisPassword", "***"), ("redisHost", "b:1")))
    kept = seal(moved, stored)
    assert value(kept, "redisPassword", resource=1) == value(stored, "redisPassword")
    assert value(kept, "redisHost", resource=1) == "b:1"


def test_a_mask_keeps_a_sealed_value_whose_field_is_no_longer_sensitive() -> None:
    stored = seal(profile(component(("redisPassword", "pw"))))
    changed = component(("redisPassword", "***"))
    changed["spec"]["type"] = "state.in-memory"
    assert isinstance(value(seal(profile(changed), stored), "redisPassword"), Sealed)


def test_an_unchanged_value_keeps_its_box() -> None:
    stored = seal(profile(component(("redisPassword", "pw"))))
    again = seal(profile(component(("redisPassword", "pw"))), stored)
    assert value(again, "redisPassword").box == value(stored, "redisPassword").box


def test_a_mask_without_a_stored_value_is_an_error_at_its_path() -> None:
    stored = seal(profile(component(("redisPassword", "pw"))))
    for wrong in (
        profile(component(("redisPassword", "***"), name="other")),
        profile(component(("redisHost", "***"))),
    ):
        _, problems = seal_document(wrong, stored, SEALER)
        assert [problem.path for problem in problems] == ["spec.resources[0].spec.metadata[0].value"]


def test_a_mask_in_a_list_without_unique_names_is_an_error() -> None:
    twice = component(("redisPassword", "one"), ("redisPassword", "two"))
    stored = seal(profile(twice))
    _, problems = seal_document(profile(component(("redisPassword", "***"), ("redisPassword", "two"))), stored, SEALER)
    assert len(problems) == 1


def test_the_error_about_a_variable_in_a_sensitive_value_does_not_reveal_it() -> None:
    _, problems = seal_document(profile(component(("redisPassword", "canary-${runtime.id}"))), None, SEALER)
    assert len(problems) == 1
    assert "canary" not in problems[0].reason


def test_null_in_a_sensitive_field_is_not_sealed() -> None:
    assert value(seal(profile(component(("redisPassword", None)))), "redisPassword") is None


def test_a_runtime_has_nothing_to_seal() -> None:
    tree = {"kind": "Runtime", "metadata": {"name": "r"}, "spec": {"platform": "local"}}
    assert seal(tree) == tree
