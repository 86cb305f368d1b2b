"""Variables: two names are filled in, unknown ones under runtime are errors, everything else passes."""

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from governor.domain.variables import evaluate, misnamed, names_variable
from governor.values.secret import Sealed, Secret
from governor.values.trees import same
from tests.unit.values.strategies import sealed, secrets, texts, thorough, trees, trees_of

LABELS = {
    "region": "eu",
    "empty": "",
    "example.com/team.x": "orders",
    "template": "${runtime.id} $${",
    "with space": "s",
}


def filled(text: Any) -> Any:
    value, problems = evaluate(text, "r1", LABELS)
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
def test_a_text_is_filled_in(text: str, value: str) -> None:
    assert filled(text) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${runtime.name}", "unknown variable ${runtime.name}; known: ${runtime.id}, ${runtime.labels.NAME}"),
        ("${runtime}", "unknown variable ${runtime};"),
        ("${runtime.}", "unknown variable ${runtime.};"),
        ("${runtime.ID}", "unknown variable ${runtime.ID};"),
        ("${runtime.id }", "unknown variable ${runtime.id };"),
        ("${runtime.labels}", "unknown variable ${runtime.labels};"),
        ("${runtime.labels.zone}", "lacks the label that ${runtime.labels.zone} asks for; its labels: empty, example"),
        ("${runtime.labels.}", "lacks the label that ${runtime.labels.} asks for"),
        ("${runtime.labels.${runtime.id}}", "lacks the label that ${runtime.labels.${runtime.id} asks for"),
    ],
)
def test_an_unknown_name_is_an_error_at_its_place(text: str, said: str) -> None:
    _, problems = evaluate({"spec": {"list": ["x", {"value": text}]}}, "r1", LABELS)
    (problem,) = problems
    assert problem.path == "spec.list[1].value"
    assert said in problem.reason


def test_each_unknown_name_is_told() -> None:
    _, problems = evaluate({"a": "${runtime.x} ${runtime.id} ${runtime.y}", "b": ["${runtime.z}"]}, "r1", {})
    assert [problem.path for problem in problems] == ["a", "a", "b[0]"]


def test_a_runtime_without_labels_is_told_so() -> None:
    _, (problem,) = evaluate("${runtime.labels.x}", "r1", {})
    assert problem.reason.endswith("its labels: none")


@thorough
@given(trees_of(texts | sealed | st.integers()))
def test_a_tree_without_variables_passes_unchanged(tree: Any) -> None:
    assume("${runtime" not in repr(tree))
    assume("$${" not in repr(tree))
    assert same(filled(tree), tree)


@thorough
@given(st.text("$", max_size=3), st.sampled_from(["{", "{runtime", "{runtime.id", "{runtime.id}", "{x}", ""]), texts)
def test_an_escaped_text_comes_out_as_it_was_meant(dollars: str, start: str, rest: str) -> None:
    text = dollars + start + rest
    assert filled(text.replace("${", "$${")) == text


@thorough
@given(trees_of(sealed | secrets))
def test_sealed_and_secret_leaves_are_never_opened(tree: Any) -> None:
    assert same(filled(tree), tree)


@thorough
@given(trees, st.sampled_from(["${runtime.id}", "${runtime.labels.region}"]))
def test_keys_are_left_alone(tree: Any, key: str) -> None:
    assume("${" not in repr(tree))
    assert same(filled({key: tree}), {key: tree})


def test_a_sealed_leaf_that_looks_like_a_variable_is_left_alone() -> None:
    leaf = Sealed("${runtime.id}", "${runtime.id}")
    assert filled([leaf])[0] is leaf
    assert filled([Secret("${runtime.id}")]) == [Secret("${runtime.id}")]


@pytest.mark.parametrize(
    ("text", "asks"),
    [("${runtime.id}", True), ("x${runtime.nope}", True), ("$${runtime.id}", False), ("${x}", False), ("", False)],
)
def test_it_is_known_whether_a_text_asks_for_a_variable(text: str, asks: bool) -> None:
    assert names_variable(text) is asks


def test_a_variable_that_no_runtime_has_is_found_without_a_runtime() -> None:
    tree = {"a": ["${runtime.id} ${runtime.labels.x}", "${runtime.name}"], "b": "$${runtime.name} ${other}", "c": 1}

    assert [(each.path, "${runtime.name}" in each.reason) for each in misnamed(tree)] == [("a[1]", True)]
