"""Variables: known names are substituted, unknown ones under ``runtime`` are errors, everything else is kept."""

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from governor.domain.variables import has_variables, substitute, unknown_variables
from governor.values.secret import Sealed, Secret
from governor.values.trees import same
from tests.unit.values.strategies import sealed, secrets, texts, trees, trees_of

LABELS = {
    "region": "eu",
    "empty": "",
    "example.com/team.x": "orders",
    "template": "${runtime.id} $${",
    "with space": "s",
}


def substituted(text: Any) -> Any:
    value, problems = substitute(text, "r1", LABELS)
    assert problems == ()
    return value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${runtime.id}", "r1"),
        ("a${runtime.id}b${runtime.id}", "ar1br1"),
        ("${runtime.labels.region}", "eu"),
        ("${runtime.labels.empty}", ""),
        ("${runtime.labels.example.com/team.x}", "orders"),
        ("${runtime.labels.with space}", "s"),
        ("${runtime.labels.template}", "${runtime.id} $${"),
        ("$${runtime.id}", "${runtime.id}"),
        ("$${anything}", "${anything}"),
        ("$$${runtime.id}", "$${runtime.id}"),
        ("$$$${runtime.id}", "$$${runtime.id}"),
        ("$${${runtime.id}}", "${r1}"),
        ("${${runtime.id}}", "${r1}"),
        ("{${runtime.id}}", "{r1}"),
        ("${other}", "${other}"),
        ("${secretKeyRef.x}", "${secretKeyRef.x}"),
        ("${runtimes.id}", "${runtimes.id}"),
        ("${RUNTIME.id}", "${RUNTIME.id}"),
        ("${ runtime.id }", "${ runtime.id }"),
        ("$runtime.id", "$runtime.id"),
        ("$ {runtime.id}", "$ {runtime.id}"),
        ("$$", "$$"),
        ("${", "${"),
        ("", ""),
        ("ä\\n${runtime.id}\\n", "ä\\nr1\\n"),
    ],
)
def test_variables_are_substituted(text: str, value: str) -> None:
    assert substituted(text) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("${runtime.name}", "unknown variable ${runtime.name}; known: ${runtime.id}, ${runtime.labels.NAME}"),
        ("${runtime}", "unknown variable ${runtime};"),
        ("${runtime.}", "unknown variable ${runtime.};"),
        ("${runtime.ID}", "unknown variable ${runtime.ID};"),
        ("${runtime.id }", "unknown variable ${runtime.id };"),
        ("${runtime.labels}", "unknown variable ${runtime.labels};"),
        ("${runtime.labels.zone}", "has no label for ${runtime.labels.zone}; its labels: empty, example"),
        ("${runtime.labels.}", "has no label for ${runtime.labels.}"),
        ("${runtime.labels.${runtime.id}}", "has no label for ${runtime.labels.${runtime.id}"),
    ],
)
def test_an_unknown_variable_is_an_error_at_its_path(text: str, reason: str) -> None:
    _, problems = substitute({"spec": {"list": ["x", {"value": text}]}}, "r1", LABELS)
    (problem,) = problems
    assert problem.path == "spec.list[1].value"
    assert reason in problem.reason


def test_each_unknown_variable_is_reported() -> None:
    _, problems = substitute({"a": "${runtime.x} ${runtime.id} ${runtime.y}", "b": ["${runtime.z}"]}, "r1", {})
    assert [problem.path for problem in problems] == ["a", "a", "b[0]"]


def test_the_reason_states_that_a_runtime_has_no_labels() -> None:
    _, (problem,) = substitute("${runtime.labels.x}", "r1", {})
    assert problem.reason.endswith("its labels: none")


@given(trees_of(texts | sealed | st.integers()))
def test_a_tree_without_variables_passes_unchanged(tree: Any) -> None:
    assume("${runtime" not in repr(tree))
    assume("$${" not in repr(tree))
    assert same(substituted(tree), tree)


@given(st.text("$", max_size=3), st.sampled_from(["{", "{runtime", "{runtime.id", "{runtime.id}", "{x}", ""]), texts)
def test_an_escaped_text_is_unescaped(dollars: str, start: str, rest: str) -> None:
    text = dollars + start + rest
    assert substituted(text.replace("${", "$${")) == text


@given(trees_of(sealed | secrets))
def test_sealed_and_secret_leaves_are_not_substituted(tree: Any) -> None:
    assert same(substituted(tree), tree)


@given(trees, st.sampled_from(["${runtime.id}", "${runtime.labels.region}"]))
def test_keys_are_not_substituted(tree: Any, key: str) -> None:
    assume("${" not in repr(tree))
    assert same(substituted({key: tree}), {key: tree})


def test_a_sealed_leaf_that_looks_like_a_variable_is_kept() -> None:
    leaf = Sealed("${runtime.id}", "${runtime.id}")
    assert substituted([leaf])[0] is leaf
    assert substituted([Secret("${runtime.id}")]) == [Secret("${runtime.id}")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("${runtime.id}", True), ("x${runtime.nope}", True), ("$${runtime.id}", False), ("${x}", False), ("", False)],
)
def test_escaped_and_foreign_templates_are_no_variables(text: str, expected: bool) -> None:
    assert has_variables(text) is expected


def test_a_variable_unknown_to_every_runtime_is_found_without_a_runtime() -> None:
    tree = {"a": ["${runtime.id} ${runtime.labels.x}", "${runtime.name}"], "b": "$${runtime.name} ${other}", "c": 1}

    assert [(each.path, "${runtime.name}" in each.reason) for each in unknown_variables(tree)] == [("a[1]", True)]
