"""Validation of a manifest against the schema of its Dapr kind, with reasons for users.

A reason never repeats a value, because a value may be a password. Validating the metadata fields of a component type is
excluded: only Dapr does that.
"""

import difflib
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from governor.domain.dapr.kinds import GROUP, Schema, built_in_types, kind_of, kinds, schema_of
from governor.errors import Detail
from governor.values.paths import Path, render
from governor.values.suggestions import suggestion
from governor.values.trees import Manifest, Tree, masked

if TYPE_CHECKING:
    from jsonschema_rs import Draft202012Validator, ValidationError

PLUGGABLE: Final = "runtime-governor.dev/pluggable"
"""Annotation of a pluggable component, whose type is not built into daprd."""

# Keywords that one layer need not satisfy, because another layer may add to it or remove from it.
_COMPLETENESS: Final = frozenset({"required", "minItems", "minProperties", "maxProperties", "anyOf", "$comment"})
_TYPE_NAMES: Final[Mapping[type, str]] = {
    dict: "a map",
    list: "a list",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    type(None): "null",
}
_SCHEMA_TYPE_NAMES: Final[Mapping[str, str]] = {
    "object": "a map",
    "array": "a list",
    "string": "a string",
    "boolean": "a boolean",
    "integer": "an integer",
    "number": "a number",
}


def validate(manifest: Tree, *, partial: bool) -> list[Detail]:
    """Return the problems of a manifest, empty if it is valid.

    A ``partial`` manifest is one layer: it must set apiVersion, kind and metadata.name, may omit everything else, and
    may remove with null or ``{name, $remove: true}``.
    """
    kind = kind_of(manifest)
    if kind is None:
        return [_unknown_kind(manifest)]
    schema, validator = _checker(kind.kind, manifest["apiVersion"], partial)
    errors = validator.iter_errors(masked(manifest))
    found = [Detail(path=render(path), reason=reason) for error in errors for path, reason in _explain(error, schema)]
    return found if found or partial or kind.kind != "Component" else list(_unknown_type(manifest))


def _unknown_type(component: Manifest) -> Iterator[Detail]:
    """Yield a detail for a type that daprd lacks, which would stop the sidecar; pluggable components are annotated."""
    component_type: str = component["spec"]["type"]
    known = built_in_types()
    annotations = component["metadata"].get("annotations") or {}
    if component_type.lower() in known or annotations.get(PLUGGABLE) == "true":
        return
    close = difflib.get_close_matches(component_type.lower(), known, n=1)
    hint = f"did you mean {close[0]!r}? For" if close else "for"
    advice = f'{hint} a pluggable component, set the annotation {PLUGGABLE}: "true"'
    yield Detail(path="spec.type", reason=f"unknown component type {component_type!r}; {advice}")


@functools.cache
def _checker(kind: str, api_version: str, partial: bool) -> tuple[Schema, "Draft202012Validator"]:
    import jsonschema_rs  # noqa: PLC0415 - slow to import, and only the server validates

    whole = schema_of(kind, api_version)
    schema = _layer_schema(whole) if partial else whole
    return schema, jsonschema_rs.Draft202012Validator(schema)


# -- schemas of layers ---------------------------------------------------------------------------------------------


def _layer_schema(whole: Schema) -> dict[str, Any]:
    layer = _partial_schema(whole)
    identity = {"name": whole["properties"]["metadata"]["properties"]["name"]}
    metadata = layer["properties"]["metadata"]
    named = {**metadata, "type": "object", "required": ["name"], "properties": metadata["properties"] | identity}
    return {
        **layer,
        "properties": layer["properties"] | {"metadata": named},
        "required": ["apiVersion", "kind", "metadata"],
    }


def _partial_schema(schema: Schema) -> dict[str, Any]:
    """Return the schema of a partial value of what this schema describes."""
    loose = {keyword: value for keyword, value in schema.items() if keyword not in _COMPLETENESS}
    if "properties" in schema:
        loose["properties"] = {name: _nullable(inner) for name, inner in schema["properties"].items()}
    if isinstance(schema.get("additionalProperties"), dict):
        loose["additionalProperties"] = _nullable(schema["additionalProperties"])
    if "items" in schema:
        loose["items"] = _removable(_partial_schema(schema["items"]))
    return loose


def _nullable(schema: Schema) -> dict[str, Any]:
    loose = _partial_schema(schema)
    if "type" in loose:
        loose["type"] = [loose["type"], "null"]
    if "enum" in loose:
        loose["enum"] = [*loose["enum"], None]
    return loose


def _removable(item: dict[str, Any]) -> dict[str, Any]:
    if "name" in item.get("properties", {}):
        item["properties"]["$remove"] = {"const": True}
    return item


# -- reasons -------------------------------------------------------------------------------------------------------


def _explain(error: "ValidationError", schema: Schema) -> Iterator[tuple[Path, str]]:
    path: Path = tuple(error.instance_path)
    keyword, found = error.kind.name, error.kind.value
    here = _part(schema, error.schema_path[:-1])
    if keyword == "additionalProperties":
        yield from (((*path, name), _unknown_field(name, here["properties"])) for name in found)
    elif keyword == "required":
        yield (*path, found), "is missing"
    elif "$comment" in here and keyword in _COMPLETENESS:
        yield path, here["$comment"]
    elif keyword == "type":
        yield path, f"must be {_type_name(found)}, not {_TYPE_NAMES[type(error.instance)]}"
    else:
        yield path, _REASONS[keyword](found)


_REASONS: Final[Mapping[str, Callable[[Any], str]]] = {
    "const": lambda expected: f"must be {json.dumps(expected)}",
    "enum": lambda options: f"must be {_either(str(option) for option in options if option is not None)}",
    "maximum": lambda limit: f"must be at most {limit}",
    "minimum": lambda limit: f"must be at least {limit}",
    "minItems": lambda limit: f"must have at least {limit} item",
    "minLength": lambda limit: "must not be empty",
    "uniqueItems": lambda _: "must not contain the same item twice",
}


def _part(schema: Any, steps: Iterable[str | int]) -> Any:
    for step in steps:
        schema = schema[step]
    return schema


def _type_name(schema_types: Iterable[str]) -> str:
    """Return the expected types in words, without null, which only marks a removal."""
    return _either(_SCHEMA_TYPE_NAMES.get(name, name) for name in schema_types if name != "null")


def _either(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def _unknown_field(name: str, known: Iterable[str]) -> str:
    return f"unknown field; {suggestion(name, sorted(known), 'known fields')}"


def _unknown_kind(manifest: Tree) -> Detail:
    """Return the reason why a manifest has no known kind."""
    if not isinstance(manifest, dict):
        return Detail("must be a map with apiVersion, kind, metadata and spec")
    name = manifest.get("kind")
    word = name if isinstance(name, str) else ""
    kind = kinds().get(word)
    if kind is not None:
        return Detail(f"must be {_either(kind.api_versions)} for a {kind.kind}", path="apiVersion")
    problem = f"unknown kind {word!r}" if word else "is missing or not a string"
    return Detail(f"{problem}; {suggestion(word, sorted(kinds()), f'kinds of {GROUP}')}", path="kind")
