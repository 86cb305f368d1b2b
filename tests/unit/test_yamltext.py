"""Reading and writing YAML: values, rejected input with its location, and round trips."""

import json
import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import Detail, GovernorError, Kind
from governor.values import paths
from governor.yamltext import Limits, Value, dump, load, path_text

# Characters that a document may contain, escaped or not; NUL and surrogates are rejected.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
# fmt: off
tricky = st.sampled_from([
    "yes", "no", "on", "off", "y", "N", "true", "False", "null", "~", "=", "<<", "0777", "0o17", "0x1f", "1:30",
    "12:30:45", "1e3", "1_000", "+1", "2001-12-14", "2001-12-14t21:59:43.10-05:00", ".nan", "-.inf", "-", "?", ":",
    "#", "&", "*", "!", "|", ">", ".5", "%", "@", "`", "[]", "{}", "---", "...", "--", "1.18.3", "127.0.0.1:6379", "a:",
])
# fmt: on
floats = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | floats | texts | tricky
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts | tricky, inner, max_size=4),
    max_leaves=12,
)


def value_of(text: str | bytes) -> Value:
    (parsed,) = load(text, "test.yaml")
    return parsed.value


def rejection(text: str | bytes, limits: Limits = Limits()) -> tuple[str, Detail]:  # noqa: B008
    with pytest.raises(GovernorError) as caught:
        load(text, "test.yaml", limits=limits)
    assert caught.value.kind is Kind.INVALID
    (detail,) = caught.value.details
    assert detail.file == "test.yaml"
    return caught.value.code, detail


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: null", {"a": None}),
        ("a: ~", {"a": None}),
        ("a:", {"a": None}),
        ("[true, False, TRUE]", [True, False, True]),
        ("[1, -2, +3, 0o17, 0x1F]", [1, -2, 3, 15, 31]),
        ("[1.5, .5, 1., 1e3, -2.5E-1]", [1.5, 0.5, 1.0, 1000.0, -0.25]),
        ("[yes, on, 12:30, 2001-12-14, 1_000, 0b1]", ["yes", "on", "12:30", "2001-12-14", "1_000", "0b1"]),
        ("['1', \"true\", !!str 1, ! 1]", ["1", "true", "1", "1"]),
        ('[!!int "1", !!float 1, !!bool "true", !!null ""]', [1, 1.0, True, None]),
        ("!!map {a: !!seq [1]}", {"a": [1]}),
        ("on: 1", {"on": 1}),
        ("'1': a", {"1": "a"}),
        ("a: |\n  x\n  y\n", {"a": "x\ny\n"}),
        ("a: &x {b: 1}\nc: *x\n", {"a": {"b": 1}, "c": {"b": 1}}),
        ("\ufeffa: 1", {"a": 1}),
        ("a: 18446744073709551615", {"a": 2**64 - 1}),
    ],
)
def test_the_core_schema_of_yaml_1_2_is_read(text: str, value: Value) -> None:
    read = value_of(text)
    assert read == value
    assert repr(read) == repr(value)


def test_merge_keys_add_absent_keys() -> None:
    text = "base: &base {a: 1, b: 1}\nother: &other {b: 2, c: 2}\nuse:\n  <<: [*base, *other]\n  a: 3\n"
    value = value_of(text)
    assert isinstance(value, dict)
    assert value["use"] == {"a": 3, "b": 1, "c": 2}
    assert value_of("'<<': 1") == {"<<": 1}


def test_an_alias_becomes_a_copy() -> None:
    value = value_of("a: &x [1]\nb: *x\n")
    assert isinstance(value, dict)
    assert value["a"] is not value["b"]


def test_documents_are_separated_and_empty_documents_are_dropped() -> None:
    parsed = load("# nothing\n---\na: 1\n---\n---\n# none\n...\n---\nnull\n", "test.yaml")
    assert [(document.value, document.line) for document in parsed] == [({"a": 1}, 3), (None, 9)]
    assert load("", "test.yaml") == load(" \n# only a comment\n", "test.yaml") == []


def test_every_path_has_its_line() -> None:
    text = "kind: A\nspec:\n  list:\n    - name: x\n      value: 1\n    - name: y\nuse: &u\n  k: v\nagain: *u\n"
    (parsed,) = load(text, "test.yaml")
    lines = {
        (): 1,
        ("kind",): 1,
        ("spec",): 2,
        ("spec", "list", 0): 4,
        ("spec", "list", 0, "value"): 5,
        ("spec", "list", 1): 6,
        ("spec", "list", 7, "value"): 3,
        ("spec", "absent", "x"): 2,
        ("again",): 9,
        ("again", "k"): 8,
    }
    assert {path: parsed.line_of(path) for path in lines} == lines


@pytest.mark.parametrize(
    ("text", "code", "line", "path", "reason"),
    [
        ("a: 1\nb: [", "yaml-syntax", 2, "", "not YAML"),
        ("a: 1\n\tb: 2", "yaml-syntax", 2, "", "indent with spaces, not with tabs"),
        ("a:\n\tb: 2", "yaml-syntax", 2, "", "indent with spaces, not with tabs"),
        ("ä: 1\nb: @c", "yaml-syntax", 2, "", "the character '@' that cannot start any token: quote a value"),
        ("a: b: c", "yaml-syntax", 1, "", "quote a value that contains a colon and a space"),
        ("a: 'x\nb: c\nd: e", "yaml-syntax", 3, "", "a quoted scalar that begins on line 1"),
        ("a: 1\nb:\n  a: 1\n  a: 2", "yaml-value", 4, "b.a", "'a' is already on line 3"),
        ("a: 1\n1: 2", "yaml-value", 2, "", "not a string: quote it"),
        ("true: 2", "yaml-value", 1, "", "not a string: quote it"),
        ("? [a]\n: 2", "yaml-value", 1, "", "a key must be a string"),
        ("a:\n- !secret x", "yaml-value", 2, "a[0]", "the tag !secret is not supported"),
        ("a: !!binary aGk=", "yaml-value", 1, "a", "the tag !!binary is not supported"),
        ("a: !!python/name:os.system {}", "yaml-value", 1, "a", "the tag !!python/name:os.system"),
        ("a: !!set {b}", "yaml-value", 1, "a", "the tag !!set"),
        ("a: !!int x", "yaml-value", 1, "a", "does not match its tag !!int"),
        ("a: .nan", "yaml-value", 1, "a", "no infinity"),
        ("a: -.inf", "yaml-value", 1, "a", "no infinity"),
        ("a: 1e999", "yaml-value", 1, "a", "too large"),
        ("a: 0123", "yaml-value", 1, "a", "leading zero is ambiguous: quote it"),
        ("a: 18446744073709551616", "yaml-value", 1, "a", "64 bits"),
        ("a: " + "9" * 9000, "yaml-value", 1, "a", "64 bits"),
        ("a: *x", "yaml-value", 1, "a", "the alias *x has no anchor &x"),
        ("a: &x\n  b: *x", "yaml-value", 2, "a.b", "is inside the value"),
        ("a: &x 1\n--- \nb: *x", "yaml-value", 3, "b", "has no anchor"),
        ("a:\n  <<: 1", "yaml-value", 2, 'a["<<"]', "takes a mapping"),
        ("<<: {a: 1}\n<<: {b: 1}", "yaml-value", 2, "", "already on line 1"),
        ('a: "\\0"', "yaml-value", 1, "a", "NUL"),
        ("a: b\n\0", "yaml-encoding", 2, "", "U+0000"),
        ("a: \x1b[0m", "yaml-encoding", 1, "", "U+001B"),
        ("a: \ud800", "yaml-encoding", 1, "", "surrogate"),
        (b"a: 1\nb: \xff", "yaml-encoding", 2, "", "byte 8 is not UTF-8"),
        ("[" * 100_000, "yaml-size", 1, "", "deeper than 64"),
        ("a: &x " + "[" * 40 + "]" * 40 + "\nb: " + "[" * 30 + "*x" + "]" * 30, "yaml-size", 2, "", "deeper than 64"),
    ],
)
def test_an_error_names_line_path_and_reason(text: str | bytes, code: str, line: int, path: str, reason: str) -> None:
    actual, detail = rejection(text)
    assert (actual, detail.line) == (code, line)
    assert reason in detail.reason
    assert not path or detail.path == path


def test_an_error_never_contains_a_value() -> None:
    for text in ("a: 0123456", "a: !!int 0x123456z", "a: 1234561e999", "a: 99999999123456999999999999", "a: [123456"):
        with pytest.raises(GovernorError) as caught:
            load(text, "test.yaml")
        assert "123456" not in str(caught.value)


def test_an_alias_bomb_is_rejected() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    code, detail = rejection("\n".join(lines))
    assert (code, detail.line) == ("yaml-size", 6)


def test_a_long_string_repeated_by_aliases_is_rejected() -> None:
    code, detail = rejection(f"a: &a {'x' * 500_000}\nb: [{', '.join(['*a'] * 1000)}]")
    assert (code, detail.path) == ("yaml-size", "b[1]")


def test_a_document_that_is_too_large_is_rejected_with_its_size_and_the_limit() -> None:
    text = "a: 1\n---\nb: " + "x" * 2_000_000
    code, detail = rejection(text)
    assert (code, detail.line) == ("yaml-size", 2)
    assert "2000007 bytes, the limit is 1048576" in detail.reason


def test_the_size_limit_applies_to_each_document() -> None:
    assert len(load("---\na: " + "x" * 600_000 + "\n---\nb: " + "y" * 600_000, "test.yaml")) == 2


def test_text_size_and_node_count_are_limited() -> None:
    assert rejection("a: 123456", Limits(text_bytes=5))[0] == "yaml-size"
    assert rejection("[1, 2, 3, 4]", Limits(nodes=4))[0] == "yaml-size"
    assert len(load("[1, 2, 3, 4]", "test.yaml", limits=Limits(nodes=5))) == 1


@given(st.text() | st.binary() | st.text(alphabet="&*a<:-[]{}?!'\"|>\n 1,#%."))
def test_any_text_is_read_or_rejected(text: str | bytes) -> None:
    try:
        documents = load(text, "test.yaml")
    except GovernorError as error:
        rejected = error
    else:
        assert json.dumps([document.value for document in documents], allow_nan=False)
        return
    assert rejected.code.startswith("yaml-")
    assert 1 <= rejected.details[0].line <= len(text) + 1


@given(values, st.sampled_from([None, 2, "\t"]), st.booleans())
def test_json_text_is_read_as_json(value: Value, indent: int | str | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    if not ascii_only and any(not (char.isprintable() or char in "\n\t") for char in text):
        text = json.dumps(value, indent=indent)
    assert same(value_of(text), json.loads(text))


def test_json_escapes_beyond_the_basic_plane_are_read() -> None:
    assert value_of(r'{"a": "\ud83d\ude00", "b": "\\ud83d\\ude00", "c": "\/"}') == {
        "a": "😀",
        "b": r"\ud83d\ude00",
        "c": "/",
    }
    assert rejection(r'{"a": "\ud83d"}')[0] == "yaml-syntax"


@given(values)
def test_written_text_round_trips_in_yaml_1_1_and_1_2(value: Value) -> None:
    text = dump(value)
    assert same(value_of(text), value)
    assert same(yaml.safe_load(text), value)


def test_written_text_is_block_style_and_keeps_the_order_of_keys() -> None:
    value: Value = {
        "kind": "Component",
        "metadata": {"name": "statestore", "labels": {}},
        "spec": {"items": [{"name": "host", "value": "127.0.0.1:6379"}, {"name": "on", "value": 1e20}], "none": []},
        "certificate": "-----BEGIN\nabc\n-----END\n",
    }
    assert dump(value) == (
        "kind: Component\n"
        "metadata:\n"
        "  name: statestore\n"
        "  labels: {}\n"
        "spec:\n"
        "  items:\n"
        "  - name: host\n"
        '    value: "127.0.0.1:6379"\n'
        '  - name: "on"\n'
        "    value: 1.0e+20\n"
        "  none: []\n"
        "certificate: |\n"
        "  -----BEGIN\n"
        "  abc\n"
        "  -----END\n"
    )


def test_a_shared_value_is_written_twice() -> None:
    shared: list[Value] = [{"a": "b"}]
    assert "&" not in dump([shared, shared])


@given(st.lists(st.text() | st.integers(0, 999)))
def test_paths_are_formatted_as_in_values_paths(steps: list[str | int]) -> None:
    assert path_text(tuple(steps)) == paths.render(tuple(steps))


def same(left: Any, right: Any) -> bool:
    """Whether two values are equal, distinguishing 1, True and 1.0, 0.0 and -0.0, and the order of keys."""
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return type(left) is type(right) and bool(left == right)
