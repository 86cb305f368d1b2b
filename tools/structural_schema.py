"""Structural schemas of Kubernetes from msgspec structs, described by the docstrings of their classes and fields.

A field is described by the string literal after it in the class. A construct that cannot be expressed, and a field
without description, is an error.
"""

import ast
import enum
import functools
import inspect
import textwrap
from collections.abc import Container, Iterator
from typing import Any, Final

import msgspec
from msgspec import inspect as msgspec_inspect

from governor.errors import GovernorError, invalid

PRESERVED: Final = {"x-kubernetes-preserve-unknown-fields": True}

_FOREIGN: Final = frozenset({"builtins", "enum", "msgspec"})
"""Packages of base classes that have no fields."""

Schema = dict[str, Any]


def schema_of(struct: type[msgspec.Struct], skip: Container[str] = ()) -> Schema:
    """Return the schema of a struct without the fields of ``skip``. It has no defaults: absent fields stay absent."""
    info = msgspec_inspect.type_info(struct)
    assert isinstance(info, msgspec_inspect.StructType)
    return _object(info, skip)


def description_of(cls: type[Any]) -> str:
    """Return the docstring of a class in one line per paragraph."""
    paragraphs = inspect.cleandoc(cls.__doc__ or "").split("\n\n")
    return "\n".join(_plain(each) for each in paragraphs)


def _schema(info: msgspec_inspect.Type) -> Schema:
    match info:
        case msgspec_inspect.Metadata(type=inner, extra_json_schema=extra):
            return _schema(inner) | (extra or {})
        case msgspec_inspect.StructType():
            return _object(info)
        case msgspec_inspect.UnionType(types=types):
            return _union([each for each in types if not isinstance(each, msgspec_inspect.NoneType)])
        case msgspec_inspect.AnyType():
            return dict(PRESERVED)
        case msgspec_inspect.DictType(value_type=value):
            return {"type": "object", **_map_of(value), **_limits("Properties", info)}
        case msgspec_inspect.VarTupleType(item_type=item):
            return {"type": "array", "items": _described_item(item), **_limits("Items", info)}
        case msgspec_inspect.EnumType(cls=cls):
            return {"type": "string", "enum": [each.value for each in cls]}
        case _:
            return _scalar(info)


def _scalar(info: msgspec_inspect.Type) -> Schema:
    match info:
        case msgspec_inspect.StrType(pattern=pattern):
            found = {"type": "string", **_limits("Length", info), "pattern": pattern}
        case msgspec_inspect.IntType(ge=least, le=most):
            found = {"type": "integer", "minimum": least, "maximum": most}
        case msgspec_inspect.BoolType():
            found = {"type": "boolean"}
        case _:
            raise _error(f"{info} has no place in a structural schema")
    return {key: value for key, value in found.items() if value is not None}


def _map_of(value: msgspec_inspect.Type) -> Schema:
    return PRESERVED if isinstance(value, msgspec_inspect.AnyType) else {"additionalProperties": _schema(value)}


def _described_item(item: msgspec_inspect.Type) -> Schema:
    schema = _schema(item)
    inner = item.type if isinstance(item, msgspec_inspect.Metadata) else item
    if isinstance(inner, msgspec_inspect.StructType):
        return {"description": description_of(inner.cls)} | schema
    return schema


def _limits(noun: str, info: Any) -> Schema:
    limits = {f"min{noun}": info.min_length, f"max{noun}": info.max_length}
    return {key: value for key, value in limits.items() if value is not None}


def _union(types: list[msgspec_inspect.Type]) -> Schema:
    """Return the schema of the only alternative; several of them have no structural schema."""
    return _schema(types[0]) if len(types) == 1 else dict(PRESERVED)


def _object(info: msgspec_inspect.StructType, skip: Container[str] = ()) -> Schema:
    descriptions = field_descriptions(info.cls)
    fields = [each for each in info.fields if each.name not in skip]
    properties = {each.encode_name: _property(each, descriptions.get(each.name, ""), info.cls) for each in fields}
    required = [each.encode_name for each in fields if each.required]
    schema: Schema = {"type": "object", "properties": properties} if properties else {"type": "object"}
    return schema | ({"required": required} if required else {})


def _property(field: msgspec_inspect.Field, description: str, cls: type[Any]) -> Schema:
    if not description:
        raise _error(f"{cls.__name__}.{field.name} has no description: put a docstring below it")
    schema = _schema(field.type)
    if field.name == "conditions":
        schema |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    texts = [description, *_choices(field.type), *_default(field)]
    return {"description": "\n".join(texts)} | schema


def _choices(info: msgspec_inspect.Type) -> Iterator[str]:
    """Yield a line for each member of an enumeration that is described."""
    types = info.types if isinstance(info, msgspec_inspect.UnionType) else (info,)
    for each in types:
        if isinstance(each, msgspec_inspect.EnumType):
            described = field_descriptions(each.cls)
            yield from (f"{one.value}: {described[one.name]}" for one in each.cls if one.name in described)


def _default(field: msgspec_inspect.Field) -> Iterator[str]:
    default = field.default
    value = default.value if isinstance(default, enum.Enum) else default
    if isinstance(value, bool | int | str) and value not in ("", False, 0):
        yield f"Default: {str(value).lower() if isinstance(value, bool) else value}."


@functools.cache
def field_descriptions(cls: type[Any]) -> dict[str, str]:
    """Return the descriptions of a class's fields or members, also inherited ones, by their names in Python."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if each.__module__.partition(".")[0] not in _FOREIGN:
            found |= dict(_own_descriptions(each))
    return found


def _own_descriptions(cls: type[Any]) -> Iterator[tuple[str, str]]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    for statement, following in zip(definition.body, definition.body[1:], strict=False):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, _plain(text)


def _plain(text: str) -> str:
    return " ".join(text.replace("``", "").split())


def _error(reason: str) -> GovernorError:
    return invalid("structural-schema", reason)
