"""Sensitive inline values of a Dapr manifest. Sealing them is excluded.

A value is sensitive because of its field's name (marked by Dapr for that component type, or a telling name such as
``apiKey``) or because the value itself contains a credential. Doubtful values count as sensitive: sealing one costs
only its readability.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from governor.domain.dapr.kinds import Schema, kind_of, schema_of, sensitive_names
from governor.values.trees import Manifest, Tree

Path: TypeAlias = tuple[str | int, ...]

# Field names are compared in lower case without separators.
_SEPARATORS: Final = re.compile(r"[-_. ]")
_TELLING: Final = re.compile(
    "password|passwd|pwd|passphrase|pass$|secret|token|credential|connectionstring|dsn$|privatekey|accesskey|key$"
    "|auth$|authorization|cookie|certificate$|sas$|signature|assertion"
)
_HARMLESS: Final = re.compile(
    "(path|file|url|uri|endpoint|header|name|namespace|prefix|type|version|store|audiences?|scopes?|length|ttl"
    "|timeout|interval|expiry)$|^max"
    "|(public|partition|ordering|object|project|host|meta|routing|sort|row|primary|message|cache|lookup)key$"
)
# user:password@ at the start or after the slashes of a URL; an Authorization header; a PEM block; a parameter.
# Bounded repetitions keep the search linear.
_CREDENTIAL: Final = re.compile(
    r"(?:^|//)[^/@\s:]{0,256}:(?!//)[^@\s]{1,512}@|^(?:basic|bearer) +\S|PRIVATE KEY-----"
    r"|(?:password|passwd|pwd|secret|token|sig|signature|(?:access|account|api)[ _-]?key)\s{0,4}=(?!=)",
    re.IGNORECASE,
)
_BOOLEANS: Final = frozenset({"", "true", "false"})


def sensitive_paths(manifest: Manifest) -> list[Path]:
    """Return the paths of the inline values that must be sealed, in a whole Dapr manifest or in one layer of it."""
    kind = kind_of(manifest)
    if kind is None:
        return []
    schema = schema_of(kind.kind, manifest["apiVersion"])
    return list(_in_schema(manifest, schema, _marked_names(manifest), (), ""))


def _marked_names(manifest: Manifest) -> frozenset[str]:
    """Return the names that Dapr marks for a component's type; a layer without a type may be of any type."""
    spec = manifest.get("spec")
    if manifest["kind"] != "Component" or not isinstance(spec, dict):
        return frozenset()
    if "type" not in spec:
        return frozenset().union(*sensitive_names().values())
    return sensitive_names().get(str(spec["type"]).lower(), frozenset())


def _in_schema(tree: Tree, schema: Schema, marked: frozenset[str], path: Path, label: str) -> Iterator[Path]:
    """Yield the sensitive values below a place that a schema describes; ``label`` is the nearest key above it."""
    if isinstance(tree, dict) and {"value", "secretKeyRef"} <= schema.get("properties", {}).keys():
        name = str(tree.get("name") or label)
        yield from _in_free_form(
            tree.get("value"), (*path, "value"), sealed=name.lower() in marked or _is_telling(name)
        )
    elif isinstance(tree, dict):
        for key, value in tree.items():
            inner = _schema_of_key(schema, key)
            if inner is None:
                yield from _in_free_form(value, (*path, key), sealed=_is_telling(key))
            else:
                yield from _in_schema(value, inner, marked, (*path, key), key)
    elif isinstance(tree, (list, tuple)):
        for index, item in enumerate(tree):
            yield from _in_schema(item, schema.get("items", {}), marked, (*path, index), label)
    else:
        yield from _in_free_form(tree, path, sealed=False)


def _schema_of_key(schema: Schema, key: str) -> Schema | None:
    """Return the schema of a key, or None if the schema allows any keys or does not define this one."""
    rest = schema.get("additionalProperties")
    inner: Schema | None = schema.get("properties", {}).get(key, rest)
    return inner if isinstance(inner, dict) else None


def _in_free_form(tree: Tree, path: Path, *, sealed: bool) -> Iterator[Path]:
    """Yield the sensitive values below a place that no schema describes; only names and values decide."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _in_free_form(value, (*path, key), sealed=sealed or _is_telling(key))
    elif isinstance(tree, (list, tuple)):
        for index, item in enumerate(tree):
            yield from _in_free_form(item, (*path, index), sealed=sealed)
    elif _can_be_sealed(tree) and (sealed or _CREDENTIAL.search(str(tree))):
        yield path


def _is_telling(name: str) -> bool:
    plain = _SEPARATORS.sub("", name.lower())
    return bool(_TELLING.search(plain)) and not _HARMLESS.search(plain)


def _can_be_sealed(leaf: Any) -> bool:
    """Whether a leaf is a non-boolean string or a number; a sealed value is neither."""
    if isinstance(leaf, str):
        return leaf.lower() not in _BOOLEANS
    return isinstance(leaf, (int, float)) and not isinstance(leaf, bool)
