"""Generates data files on Dapr: the schemas of its kinds, its component types and their sensitive fields.

The source is Dapr's Go modules, in the version that the testbed builds; descriptions are not copied. An unknown schema
construct is an error, so that no rule of a newer Dapr is lost silently.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from governor import yamltext
from governor.errors import GovernorError, Kind
from testbed.builds.dapr import VERSION
from toolchain import cache, golang

DATA: Final = Path("src/governor/domain/dapr/data")

_DAPR: Final = "github.com/dapr/dapr"
_COMPONENTS: Final = "github.com/dapr/components-contrib"

_IGNORED: Final = frozenset({"default", "description"})
_KEPT: Final = frozenset({"enum", "minItems", "minLength", "required", "type"})
_INT32: Final = {"minimum": -(2**31), "maximum": 2**31 - 1}
_TEXTS: Final = {"type": "object", "additionalProperties": {"type": "string"}}
_METADATA: Final = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "namespace": {"type": "string", "minLength": 1},
        "labels": _TEXTS,
        "annotations": _TEXTS,
    },
}
# Dapr writes these two rules in an expression language; ``$comment`` is the reason that users see.
_RULES: Final[Mapping[tuple[str, ...], Mapping[str, Any]]] = {
    ("MCPServer", "spec", "endpoint"): {
        "$comment": "set exactly one of streamableHTTP, sse and stdio",
        "minProperties": 1,
        "maxProperties": 1,
    },
    ("WorkflowAccessPolicy", "spec", "rules", "[]"): {
        "$comment": "give at least one rule in workflows or activities",
        "anyOf": [
            {"required": ["workflows"], "properties": {"workflows": {"minItems": 1}}},
            {"required": ["activities"], "properties": {"activities": {"minItems": 1}}},
        ],
    },
}


def outputs() -> dict[Path, str]:
    """Return the data files by their paths in the repository."""
    source = _source(_DAPR, VERSION)
    components = _required_version(source / "go.mod", _COMPONENTS)
    origins = (f"{_DAPR}@v{VERSION}", f"{_COMPONENTS}@v{components}")
    return {
        DATA / "kinds.json": _text({"origin": origins[0], "schemas": _schemas(source)}),
        DATA / "components.json": _text(
            {
                "origin": list(origins),
                "sensitive": _sensitive(_source(_COMPONENTS, components)),
                "types": _types(source / "cmd" / "daprd" / "components"),
            }
        ),
    }


def _text(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=1, sort_keys=True) + "\n"


def _fail(reason: str) -> GovernorError:
    return GovernorError(Kind.UNAVAILABLE, "generate-dapr", reason)


def _source(module: str, version: str) -> Path:
    return cache.ensure(golang.source(module, version)).parent


def _required_version(go_mod: Path, module: str) -> str:
    found = re.search(
        rf"^\s*(?:require\s+)?{re.escape(module)} v(\S+)", go_mod.read_text(encoding="utf-8"), re.MULTILINE
    )
    if found is None:
        raise _fail(f"{go_mod.name} does not require {module}")
    return found[1]


def _read(path: Path) -> Any:
    (document,) = yamltext.load(path.read_bytes(), path.name)
    return document.value


# -- schemas of the kinds ------------------------------------------------------------------------------------------


def _schemas(dapr: Path) -> dict[str, dict[str, Any]]:
    definitions = [_read(path)["spec"] for path in sorted((dapr / "charts" / "dapr" / "crds").glob("*.yaml"))]
    if not definitions:
        raise _fail("Dapr's module has no custom resource definitions in charts/dapr/crds")
    return {definition["names"]["kind"]: _versions(definition) for definition in definitions}


def _versions(definition: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"{definition['group']}/{version['name']}": _root(definition, version)
        for version in definition["versions"]
        if version["served"]
    }


def _root(definition: Mapping[str, Any], version: Mapping[str, Any]) -> dict[str, Any]:
    kind = definition["names"]["kind"]
    root = _schema(version["schema"]["openAPIV3Schema"], (kind,))
    root["properties"]["apiVersion"] = {"const": f"{definition['group']}/{version['name']}"}
    root["properties"]["kind"] = {"const": kind}
    root["properties"]["metadata"] = _METADATA
    root["required"] = ["apiVersion", "kind", "metadata", "spec"]
    return root


def _schema(source: Mapping[str, Any], place: tuple[str, ...]) -> dict[str, Any]:
    """Translate a part of a Kubernetes schema into JSON Schema without additional properties."""
    schema: dict[str, Any] = {}
    for keyword, value in source.items():
        if keyword not in _IGNORED:
            schema |= _translated(keyword, value, place)
    if "properties" in schema:
        schema["additionalProperties"] = False
    return schema


def _translated(keyword: str, value: Any, place: tuple[str, ...]) -> Mapping[str, Any]:
    if keyword in _KEPT:
        return {keyword: sorted(value) if keyword == "required" else value}
    if keyword == "properties":
        return {keyword: {name: _schema(inner, (*place, name)) for name, inner in value.items()}}
    if keyword == "items":
        return {keyword: _schema(value, (*place, "[]"))}
    if keyword == "additionalProperties":
        return {keyword: _schema(value, (*place, "{}"))}
    return _extension(keyword, value, place)


def _extension(keyword: str, value: Any, place: tuple[str, ...]) -> Mapping[str, Any]:
    match keyword, value:
        case "format", "int32":
            return _INT32
        case "x-kubernetes-list-type", "set":
            return {"uniqueItems": True}
        case "x-kubernetes-preserve-unknown-fields", True:
            return {}
        case "x-kubernetes-validations", [_] if place in _RULES:
            return _RULES[place]
    raise _fail(f"{'.'.join(place)} uses {keyword}: {value!r}, which is not supported yet")


# -- types of components -------------------------------------------------------------------------------------------


def _types(registrations: Path) -> list[str]:
    """Return every type that daprd registers; one file registers one component, possibly under several names."""
    found: set[str] = set()
    for path in sorted(registrations.glob("*_*.go")):
        if path.stem.endswith(("_test", "zz_notag")):
            continue
        family = "middleware.http" if path.stem.startswith("middleware_http") else path.stem.split("_")[0]
        names = _registered(path.read_text(encoding="utf-8"))
        if not names:
            raise _fail(f"{path.name} registers no component in a known way")
        found |= {f"{family}.{name}" for name in names}
    return sorted(found)


def _registered(source: str) -> set[str]:
    """Return the string literals among the direct arguments of Register calls, without nested ones."""
    names: set[str] = set()
    for call in re.finditer(r"\.Register\w*\(", source):
        depth = 1
        for token in re.finditer(r'"([^"\n]*)"|[(){}\[\]]', source[call.end() :]):
            if token[1] is not None:
                names |= {token[1]} if depth == 1 else set()
            else:
                depth += 1 if token[0] in "({[" else -1
            if depth == 0:
                break
    return names


# -- sensitive fields of the components ----------------------------------------------------------------------------


def _sensitive(components: Path) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    for path in sorted(components.rglob("metadata.yaml")):
        component = _read(path)
        names = {field["name"] for field in _fields(component) if field.get("sensitive")}
        if names:
            found.setdefault(_type(component), set()).update(names)
    if not found:
        raise _fail("the components' module has no metadata.yaml that marks a field as sensitive")
    return {component: sorted(names) for component, names in found.items()}


def _type(component: Mapping[str, Any]) -> str:
    # Dapr has one kind of middleware, and a Component names it.
    family = "middleware.http" if component["type"] == "middleware" else component["type"]
    return f"{family}.{component['name']}".lower()


def _fields(component: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    profiles = component.get("authenticationProfiles") or []
    return [field for part in (component, *profiles) for field in part.get("metadata") or []]
