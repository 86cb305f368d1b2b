"""Affected runtimes, classes and their bundles, and where errors of folded layers are reported."""

from typing import Any

import pytest

from governor.domain.bundles import Bundle
from governor.domain.documents import DocumentRef
from governor.errors import GovernorError, Kind
from governor.server.changes.compiler import Compiler, affected_runtimes, check_selectors, unused_profiles
from tests.unit.server.changes.samples import (
    EU,
    catalogue,
    component,
    deletion,
    fields,
    loader,
    profile,
    redis,
    runtime,
    version,
)

RUNTIMES = (runtime("r1", region="eu"), runtime("r2", region="us"), runtime("r3", region="eu"))
P = DocumentRef("Profile", "p")


def compiled(compiler: Compiler, names: list[str], *trees: dict[str, Any]) -> dict[str, Bundle]:
    return compiler.compile(catalogue(*trees), names, loader(*trees))


def test_a_profile_affects_the_runtimes_that_it_selects_and_selected() -> None:
    before = catalogue(*RUNTIMES, profile("p", EU))
    after = catalogue(*RUNTIMES, profile("p", {"runtime": "r2"}))
    assert affected_runtimes(before, after, [P]) == ["r1", "r2", "r3"]
    assert affected_runtimes(after, after, [P]) == ["r2"]


def test_a_deleted_profile_affects_the_remaining_runtimes_that_it_selected() -> None:
    before = catalogue(*RUNTIMES, profile("p", EU))
    touched = [P, DocumentRef("Runtime", "r3")]
    assert affected_runtimes(before, before.updated(2, map(deletion, touched)), touched) == ["r1"]


def test_a_touched_runtime_affects_itself() -> None:
    both = catalogue(*RUNTIMES)
    assert affected_runtimes(both, both, [DocumentRef("Runtime", "r2")]) == ["r2"]


def test_a_class_is_compiled_once_however_many_runtimes_it_has() -> None:
    runtimes = [runtime(f"r{number}", region=f"region-{number % 4}", rack=str(number)) for number in range(1000)]
    trees = (*runtimes, profile("base", {}, redis("s", redisHost="h")), profile("p", EU, redis("t", redisHost="h")))
    compiler, names = Compiler(), [each["metadata"]["name"] for each in runtimes]
    bundles = compiled(compiler, names, *trees)
    assert compiler.compilations == 1
    assert len({id(each) for each in bundles.values()}) == 1

    regional = profile("base", {}, redis("s", redisHost="${runtime.labels.region}"))
    compiler = Compiler()
    bundles = compiled(compiler, names, *runtimes, regional)
    assert (compiler.compilations, len({each.digest for each in bundles.values()})) == (4, 4)


def test_runtimes_with_their_own_profiles_other_namespaces_or_their_names_are_classes_of_their_own() -> None:
    other = {**runtime("r4", region="eu"), "spec": {"platform": "local", "namespaces": ["shop"]}}
    base = profile("base", {}, redis("s", redisHost="h"))
    compiler = Compiler()
    compiled(compiler, ["r1", "r2", "r3", "r4"], *RUNTIMES, other, base, profile("own", {"runtime": "r1"}))
    assert compiler.compilations == 3

    named, compiler = profile("base", {}, redis("s", redisHost="${runtime.id}")), Compiler()
    compiled(compiler, ["r1", "r2", "r3"], *RUNTIMES, named)
    assert compiler.compilations == 3


def test_a_second_compilation_repeats_only_what_has_changed() -> None:
    base, over = profile("base", {}, redis("s", redisHost="a")), profile("over", EU, redis("s", redisHost="b"))
    compiler = Compiler()
    first = compiled(compiler, ["r1", "r2", "r3"], *RUNTIMES, base, over)
    changed = profile("over", EU, redis("s", redisHost="c"))
    second = compiled(compiler, ["r1", "r2", "r3"], *RUNTIMES, base, changed)
    assert compiler.compilations == 3
    assert second["r2"] is first["r2"]
    assert second["r1"] is second["r3"]
    assert second["r1"].digest != first["r1"].digest


def test_layers_that_are_complete_only_together_are_accepted() -> None:
    base = profile("base", {}, component("s", {"type": "state.redis", "metadata": fields(redisHost="a:1")}))
    over = profile("over", EU, component("s", {"version": "v1", "metadata": fields(redisDB="2")}))
    bundles = compiled(Compiler(), ["r1"], *RUNTIMES, base, over)
    assert bundles["r1"].resources[0]["spec"] == {
        "type": "state.redis",
        "version": "v1",
        "metadata": fields(redisHost="a:1", redisDB="2"),
    }


def test_a_missing_field_is_reported_once_at_the_profile_that_introduced_the_resource() -> None:
    incomplete = component("s", {"version": "v1", "metadata": []})
    with pytest.raises(GovernorError) as caught:
        compiled(Compiler(), ["r1", "r3"], *RUNTIMES, profile("p", EU, incomplete))
    assert (caught.value.kind, len(caught.value.details)) == (Kind.INVALID, 1)
    assert caught.value.details[0].document == "Profile/p"
    assert caught.value.details[0].path == "spec.resources[0].spec.type"


def test_an_unknown_variable_is_reported_at_the_layer_that_wrote_it() -> None:
    base = profile("base", {}, redis("s", a="1"))
    over = profile("over", EU, component("s", {"metadata": fields(b="${runtime.nope}")}))
    with pytest.raises(GovernorError) as caught:
        compiled(Compiler(), ["r1"], *RUNTIMES, base, over)
    assert [(detail.document, detail.path) for detail in caught.value.details] == [
        ("Profile/over", "spec.resources[0].spec.metadata[b].value")
    ]


def test_errors_of_all_classes_are_reported_together() -> None:
    first = profile("first", {"runtime": "r1"}, component("s", {"version": "v1"}))
    second = profile("second", {"runtime": "r2"}, component("s", {"version": "v1"}))
    with pytest.raises(GovernorError) as caught:
        compiled(Compiler(), ["r1", "r2"], *RUNTIMES, first, second)
    assert {detail.document for detail in caught.value.details} == {"Profile/first", "Profile/second"}
    assert "(and 1 more)" in caught.value.message


def test_a_conflict_is_reported_once_for_all_runtimes_that_have_it() -> None:
    one, two = profile("one", {}, redis("s", a="1")), profile("two", {}, redis("s", a="2"))
    with pytest.raises(GovernorError) as caught:
        compiled(Compiler(), ["r1", "r2", "r3"], *RUNTIMES, one, two)
    assert (caught.value.kind, len(caught.value.details)) == (Kind.CONFLICT, 1)


def test_an_apply_policy_folds_field_by_field_as_written() -> None:
    base = profile("base", {}, apply={"strategy": "rolling", "verifyWindowSeconds": 5})
    over = profile("over", EU, apply={"verifyWindowSeconds": 9})
    apply = compiled(Compiler(), ["r1"], *RUNTIMES, base, over)["r1"].apply
    assert (apply.strategy, apply.verify_window_seconds) == ("rolling", 9)


def test_every_touched_profile_that_names_an_unknown_runtime_is_reported() -> None:
    trees = (runtime("r1"), profile("a", {"runtime": "x"}), profile("b", {"runtime": "y"}), profile("c", {}))
    touched = [version(tree).ref for tree in trees]
    with pytest.raises(GovernorError) as caught:
        check_selectors(catalogue(*trees), touched)
    assert [detail.document for detail in caught.value.details] == ["Profile/a", "Profile/b"]


def test_a_deleted_runtime_that_a_profile_names_is_reported() -> None:
    ref = DocumentRef("Runtime", "r1")
    after = catalogue(runtime("r1"), profile("a", {"runtime": "r1"})).updated(2, [deletion(ref)])
    with pytest.raises(GovernorError) as caught:
        check_selectors(after, [ref])
    assert [detail.document for detail in caught.value.details] == ["Profile/a"]


def test_only_touched_profiles_that_select_no_runtime_cause_a_warning() -> None:
    documents = catalogue(runtime("r1"), profile("a", EU), profile("b", EU), profile("c", {}))
    touched = [DocumentRef("Profile", name) for name in ("a", "c", "gone")]
    assert unused_profiles(documents, touched) == ["profile 'a' selects no runtime"]
