"""The text form of paths, and its round trip."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import GovernorError, Kind
from governor.values.paths import Item, Path, parse, render
from governor.yamltext import path_text
from tests.unit.values.strategies import texts, words

awkward = st.sampled_from(["0", "1a", "a.b", 'quo"te', "[0]", "]", "[", "{", '"}', "\\", '\\"', "\n", "ä", "a b", "$x"])
names = texts | words | awkward
steps = names | st.builds(Item, names) | st.integers(0, 10**6)
paths = st.lists(steps, max_size=6).map(tuple)


@given(paths)
def test_a_rendered_path_parses_to_itself(path: Path) -> None:
    assert parse(render(path)) == path


@given(paths, paths)
def test_different_paths_have_different_texts(one: Path, other: Path) -> None:
    assert (render(one) == render(other)) == (one == other)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), ""),
        (("spec",), "spec"),
        (("spec", "metadata", Item("redisHost"), "value"), "spec.metadata[redisHost].value"),
        (("spec", "resources", 0, "metadata"), "spec.resources[0].metadata"),
        (("metadata", "labels", "example.com/team"), 'metadata.labels["example.com/team"]'),
        (("items", Item("0")), 'items[name="0"]'),
        (("", Item("")), '[""][name=""]'),
        (("a.b",), '["a.b"]'),
        (("a", Item("x=y")), 'a[name="x=y"]'),
        (("Größe", "c"), '["Größe"].c'),
        (("1", 1), '["1"][1]'),
    ],
)
def test_examples_of_rendered_paths(path: Path, text: str) -> None:
    assert render(path) == text
    assert parse(text) == path


INVALID = ["a..b", "a.", "[", "[]", "a[0", '["open]', "{a}", "1a", "a b", "[-1]", "ä", r'["\x"]', r'[name="\x"]']


@pytest.mark.parametrize("text", INVALID)
def test_an_invalid_path_is_rejected_with_its_position(text: str) -> None:
    with pytest.raises(GovernorError, match="not a path at position") as caught:
        parse(text)
    assert caught.value.kind is Kind.INVALID
    assert caught.value.code == "path-unreadable"


@given(st.lists(names | st.integers(0, 99), max_size=5).map(tuple))
def test_a_path_in_a_yaml_error_parses(path: tuple[str | int, ...]) -> None:
    assert parse(path_text(path)) == path
