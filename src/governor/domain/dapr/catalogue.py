"""Which inline values of a Dapr manifest must be sealed.

A value is sensitive by its field's name (Dapr's own catalogue for that component type, or a name that speaks for
itself) or because the value itself shows a credential. In doubt it is sealed: that costs only a look at it. Sealing
is the server's business.
"""

import functools
import re
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import msgspec

from governor.domain.dapr import facts
from governor.domain.dapr.kinds import Schema, kind_of, schema_of
from governor.values.trees import Manifest, Tree

Place: TypeAlias = tuple[str | int, ...]

# Names are compared in lower case without separators.
_SEPARATORS: Final = re.compile(r"[-_. ]")
_SPEAKING: Final = re.compile(
    "password|passwd|pwd|passphrase|pass$|secret|token|credential|connectionstring|dsn$|privatekey|accesskey|key$"
    "|auth$|authorization|cookie|certificate$|sas$|signature|assertion"
)
_HARMLESS: Final = re.compile(
    "(path|file|url|uri|endpoint|header|name|namespace|prefix|type|version|store|audiences?|scopes?|length|ttl"
    "|timeout|interval|expiry)$|^max"
    "|(public|partition|ordering|object|project|host|meta|routing|sort|row|primary|message|cache|lookup)key$"
)
# user:password@ at the beginning or behind the slashes of a URL; a header; a PEM block; a parameter. Bounded
# repetitions keep the search linear.
_CREDENTIAL: Final = re.compile(
    r"(?:^|//)[^/@\s:]{0,256}:(?!//)[^@\s]{1,512}@|^(?:basic|bearer) +\S|PRIVATE KEY-----"
    r"|(?:password|passwd|pwd|secret|token|sig|signature|(?:access|account|api)[ _-]?key)\s{0,4}=(?!=)",
    re.IGNORECASE,
)
_SWITCHES: Final = frozenset({"", "true", "false"})


class _Facts(msgspec.Struct, frozen=True):
    """``origin`` are the sources of ``data/components.json``; sensitive names are by component type."""

    origin: tuple[str, ...]
    sensitive: dict[str, frozenset[str]]
    types: frozenset[str]


@functools.cache
def _facts() -> _Facts:
    return facts.read("components", _Facts)


@functools.cache
def _listed() -> dict[str, frozenset[str]]:
    return {component: frozenset(map(str.lower, names)) for component, names in _facts().sensitive.items()}


def built_in_types() -> frozenset[str]:
    """The component types that daprd itself has."""
    return _facts().types


def sensitive_paths(manifest: Manifest) -> list[Place]:
    """The paths of the inline values of a Dapr manifest, whole or one layer, that must be sealed."""
    kind = kind_of(manifest)
    if kind is None:
        return []
    schema = schema_of(kind.kind, manifest["apiVersion"])
    return list(_described(manifest, schema, _listed_names(manifest), (), ""))


def _listed_names(manifest: Manifest) -> frozenset[str]:
    """The catalogue's names for a component's type; a layer that does not say its type may be of any."""
    spec = manifest.get("spec")
    if manifest["kind"] != "Component" or not isinstance(spec, dict):
        return frozenset()
    if "type" not in spec:
        return frozenset().union(*_listed().values())
    return _listed().get(str(spec["type"]).lower(), frozenset())


def _described(tree: Tree, schema: Schema, listed: frozenset[str], path: Place, label: str) -> Iterator[Place]:
    """Sensitive values below a place that a schema describes; ``label`` is the nearest key above it."""
    if isinstance(tree, dict) and {"value", "secretKeyRef"} <= schema.get("properties", {}).keys():
        name = str(tree.get("name") or label)
        yield from _free(tree.get("value"), (*path, "value"), sealed=name.lower() in listed or _speaks(name))
    elif isinstance(tree, dict):
        for key, value in tree.items():
            inner = _inner(schema, key)
            if inner is None:
                yield from _free(value, (*path, key), sealed=_speaks(key))
            else:
                yield from _described(value, inner, listed, (*path, key), key)
    elif isinstance(tree, (list, tuple)):
        for index, item in enumerate(tree):
            yield from _described(item, schema.get("items", {}), listed, (*path, index), label)
    else:
        yield from _free(tree, path, sealed=False)


def _inner(schema: Schema, key: str) -> Schema | None:
    """What a schema says about a key; None where it leaves keys free, or does not know this one."""
    rest = schema.get("additionalProperties")
    inner: Schema | None = schema.get("properties", {}).get(key, rest)
    return inner if isinstance(inner, dict) else None


def _free(tree: Tree, path: Place, *, sealed: bool) -> Iterator[Place]:
    """Sensitive values below a place where names are all there is to go by."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _free(value, (*path, key), sealed=sealed or _speaks(key))
    elif isinstance(tree, (list, tuple)):
        for index, item in enumerate(tree):
            yield from _free(item, (*path, index), sealed=sealed)
    elif _can_be_sealed(tree) and (sealed or _CREDENTIAL.search(str(tree))):
        yield path


def _speaks(name: str) -> bool:
    plain = _SEPARATORS.sub("", name.lower())
    return bool(_SPEAKING.search(plain)) and not _HARMLESS.search(plain)


def _can_be_sealed(leaf: Any) -> bool:
    """Texts and numbers; a switch is no secret, and what is sealed already is neither."""
    if isinstance(leaf, str):
        return leaf.lower() not in _SWITCHES
    return isinstance(leaf, (int, float)) and not isinstance(leaf, bool)
