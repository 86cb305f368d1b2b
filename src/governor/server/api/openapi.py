"""The OpenAPI document, generated from the endpoint table and its structs."""

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

import governor
from governor.server.api.endpoints import EVENTS, INTEGER, JSON, PLAIN, PROBLEM, TEXT, YAML, Access, Endpoint
from governor.wire.problems import Problem

_PARAMETER: Final = re.compile(r"\{(\w+)\}")
_REF: Final = "#/components/schemas/{name}"
_IN_PATH: Final = {"revision": INTEGER, "sequence": INTEGER}
"""Schemas of the parameters in paths that are not text."""


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return the OpenAPI document."""
    types = [Problem, *dict.fromkeys(kind for each in endpoints for kind in (each.body, each.response) if kind)]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    schema_of = {kind: _without_discriminator(schema) for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for each in endpoints:
        paths.setdefault(each.route, {})[each.method.lower()] = _operation(each, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Runtime Governor", "version": governor.__version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _without_discriminator(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without its discriminator, which maps only text, while the formats of reports are numbers."""
    return {name: value for name, value in schema.items() if name != "discriminator"}


def _operation(endpoint: Endpoint, schema_of: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "operationId": f"{endpoint.handler.__module__.rpartition('.')[2]}.{endpoint.handler.__name__}",
        "x-access": endpoint.access,
        "security": [] if endpoint.access is Access.PUBLIC else [{"bearer": []}],
        "parameters": _parameters(endpoint),
        "responses": {
            **{str(status): _response(endpoint, schema_of) for status in (endpoint.status, *endpoint.other_statuses)},
            **_plain_404(endpoint),
            "default": {
                "description": "A problem",
                "content": {PROBLEM: {"schema": schema_of[Problem]}},
            },
        },
    }
    if endpoint.body is not None:
        operation["requestBody"] = {"required": True, "content": _body(endpoint, schema_of)}
    return operation


def _plain_404(endpoint: Endpoint) -> dict[str, Any]:
    content = {PLAIN: {"schema": TEXT}}
    return {"404": {"description": "There is no such object", "content": content}} if endpoint.plain_404 else {}


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": _IN_PATH.get(name, TEXT)}
        for name in _PARAMETER.findall(endpoint.path)
    ]
    in_query = [
        {"name": each.name, "in": "query", "description": each.description, "schema": each.schema}
        for each in endpoint.query
    ]
    return in_path + in_query


def _body(endpoint: Endpoint, schema_of: dict[Any, Any]) -> dict[str, Any]:
    content = {JSON: {"schema": schema_of[endpoint.body]}}
    return content | ({YAML: {"schema": TEXT}} if endpoint.yaml else {})


def _response(endpoint: Endpoint, schema_of: dict[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if endpoint.response is not None:
        content[JSON] = {"schema": schema_of[endpoint.response]}
    if endpoint.events:
        content[EVENTS] = {"schema": {"type": "string", "description": f"events: {', '.join(endpoint.events)}"}}
    return {"description": endpoint.summary, "content": content} if content else {"description": endpoint.summary}
