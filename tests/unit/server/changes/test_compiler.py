"""Affected runtimes, compiled bundles, and where errors of folded layers are reported."""

from typing import Any

import pytest

from governor.domain.documents import DocumentRef
from governor.errors import GovernorError, Kind
from governor.server.changes.compiler import (
    Documents,
    affected_runtimes,
    check_selectors,
    compile_runtimes,
    read_documents,
    unused_profiles,
)

API_VERSION = "runtime-governor.dev/v1alpha1"
EU = {"matchLabels": {"region": "eu"}}


def runtime(name: str, **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": API_VERSION, "kind": "Runtime", "metadata": metadata, "spec": {"platform": "local"}}


def profile(name: str, selector: dict[str, Any], *resources: dict[str, Any], **spec: Any) -> dict[str, Any]:
    whole = {"selector": selector, "resources": list(resources), **spec}
    return {"apiVersion": API_VERSION, "kind": "Profile", "metadata": {"name": name}, "spec": whole}


def component(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "dapr.io/v1alpha1", "kind": "Component", "metadata": {"name": name}, "spec": spec}


def fields(**values: str) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def read(*trees: dict[str, Any]) -> Documents:
    return read_documents(trees)


RUNTIMES = (runtime("r1", region="eu"), runtime("r2", region="us"), runtime("r3", region="eu"))


def test_a_profile_affects_the_runtimes_that_it_selects_and_selected() -> None:
    before = read(*RUNTIMES, profile("p", EU))
    after = read(*RUNTIMES, profile("p", {"runtime": "r2"}))
    assert affected_runtimes(before, after, [DocumentRef("Profile", "p")]) == ["r1", "r2", "r3"]
    assert affected_runtimes(after, after, [DocumentRef("Profile", "p")]) == ["r2"]


def test_a_deleted_profile_affects_the_remaining_runtimes_that_it_selected() -> None:
    before = read(*RUNTIMES, profile("p", EU))
    after = read(RUNTIMES[0], RUNTIMES[1])
    touched = [DocumentRef("Profile", "p"), DocumentRef("Runtime", "r3")]
    assert affected_runtimes(before, after, touched) == ["r1"]


def test_a_touched_runtime_affects_itself() -> None:
    both = read(*RUNTIMES)
    assert affected_runtimes(both, both, [DocumentRef("Runtime", "r2")]) == ["r2"]


def test_layers_that_are_complete_only_together_are_accepted() -> None:
    base = profile("base", {}, component("s", {"type": "state.redis", "metadata": fields(redisHost="a:1")}))
    over = profile("over", EU, component("s", {"version": "v1", "metadata": fields(redisDB="2")}))
    bundles = compile_runtimes(read(*RUNTIMES, base, over), ["r1"])
    assert bundles["r1"].resources[0]["spec"] == {
        "type": "state.redis",
        "version": "v1",
        "metadata": fields(redisHost="a:1", redisDB="2"),
    }


def test_a_missing_field_is_reported_once_at_the_profile_that_introduced_the_resource() -> None:
    incomplete = component("s", {"version": "v1", "metadata": []})
    with pytest.raises(GovernorError) as caught:
        compile_runtimes(read(*RUNTIMES, profile("p", EU, incomplete)), ["r1", "r3"])
    assert (caught.value.kind, len(caught.value.details)) == (Kind.INVALID, 1)
    assert caught.value.details[0].document == "Profile/p"
    assert caught.value.details[0].path == "spec.resources[0].spec.type"


def test_an_unknown_variable_is_reported_at_the_layer_that_wrote_it() -> None:
    base = profile("base", {}, component("s", {"type": "state.redis", "version": "v1", "metadata": fields(a="1")}))
    over = profile("over", EU, component("s", {"metadata": fields(b="${runtime.nope}")}))
    with pytest.raises(GovernorError) as caught:
        compile_runtimes(read(*RUNTIMES, base, over), ["r1"])
    assert [(detail.document, detail.path) for detail in caught.value.details] == [
        ("Profile/over", "spec.resources[0].spec.metadata[b].value")
    ]


def test_errors_of_all_runtimes_are_reported_together() -> None:
    first = profile("first", {"runtime": "r1"}, component("s", {"version": "v1"}))
    second = profile("second", {"runtime": "r2"}, component("s", {"version": "v1"}))
    with pytest.raises(GovernorError) as caught:
        compile_runtimes(read(*RUNTIMES, first, second), ["r1", "r2"])
    assert {detail.document for detail in caught.value.details} == {"Profile/first", "Profile/second"}
    assert "(and 1 more)" in caught.value.message


def test_an_apply_policy_folds_field_by_field_as_written() -> None:
    base = profile("base", {}, apply={"strategy": "rolling", "verifyWindowSeconds": 5})
    over = profile("over", EU, apply={"verifyWindowSeconds": 9})
    apply = compile_runtimes(read(*RUNTIMES, base, over), ["r1"])["r1"].apply
    assert (apply.strategy, apply.verify_window_seconds) == ("rolling", 9)


def test_every_profile_that_names_an_unknown_runtime_is_reported() -> None:
    documents = read(runtime("r1"), profile("a", {"runtime": "x"}), profile("b", {"runtime": "y"}), profile("c", {}))
    with pytest.raises(GovernorError) as caught:
        check_selectors(documents)
    assert [detail.document for detail in caught.value.details] == ["Profile/a", "Profile/b"]


def test_only_touched_profiles_that_select_no_runtime_cause_a_warning() -> None:
    documents = read(runtime("r1"), profile("a", EU), profile("b", EU), profile("c", {}))
    touched = [DocumentRef("Profile", name) for name in ("a", "c", "gone")]
    assert unused_profiles(documents, touched) == ["profile 'a' selects no runtime"]
