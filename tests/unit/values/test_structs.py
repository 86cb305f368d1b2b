"""Messages for validation errors: full paths and choices; more cases are in the tests of documents."""

from typing import Annotated, Any, Literal

import msgspec
import pytest

from governor.values.structs import explain

Colour = Annotated[str, msgspec.Meta(pattern="^#[0-9a-f]{6}$", description="a colour such as #00ff00")]


class Dot(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    at: int
    fill_colour: Colour | None = None
    notes: dict[str, str] = {}


class Drawing(msgspec.Struct, rename={"line_width": "line-width"}):
    dots: tuple[Dot, ...]
    deep: dict[str, Dot] = {}
    line_width: int = 1
    title: Annotated[str, msgspec.Meta(max_length=3)] = ""
    unit: Annotated[Literal["mm", "cm"], msgspec.Meta(description="the unit")] = "mm"
    code: Annotated[str, msgspec.Meta(pattern="^[0-9]+$")] = "0"
    first: Dot | None = None


@pytest.mark.parametrize(
    ("tree", "path", "reason"),
    [
        (5, (), "must be a map, not an integer"),
        ({}, ("dots",), "is missing"),
        ({"dots": [{"at": 1}, {}]}, ("dots", 1, "at"), "is missing"),
        ({"dots": [{"at": "1"}]}, ("dots", 0, "at"), "must be an integer, not a string"),
        ({"dots": [{"at": 1, "a`b": 2}]}, ("dots", 0, "a`b"), "unknown field; known fields: at, fillColour, notes"),
        ({"dots": [{"at": 1, "fillColour": "red"}]}, ("dots", 0, "fillColour"), "must be a colour such as #00ff00"),
        (
            {"dots": [{"at": 1, "notes": {"a": "b", "c.d": []}}]},
            ("dots", 0, "notes", "c.d"),
            "must be a string, not a list",
        ),
        ({"dots": [{"at": 1, "notes": {1: "b"}}]}, ("dots", 0, "notes"), "must be a string, not an integer"),
        ({"dots": [], "first": {"to": 1}}, ("first", "to"), "unknown field; known fields: at, fillColour, notes"),
        ({"dots": [], "line-width": "2"}, ("line-width",), "must be an integer, not a string"),
        ({"dots": [], "title": "long"}, ("title",), "must have at most 3 characters"),
        ({"dots": [], "code": "x"}, ("code",), "must match ^[0-9]+$"),
        ({"dots": [], "unit": "m"}, ("unit",), "must be cm or mm"),
        ({"dots": [], "deep": {"k": 5}}, ("deep", "k"), "must be a map, not an integer"),
    ],
)
def test_a_mismatch_is_reported_with_its_path(tree: Any, path: Any, reason: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(tree, Drawing)
    assert explain(caught.value, Drawing, tree) == (path, reason)
