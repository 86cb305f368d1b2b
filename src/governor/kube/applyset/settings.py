"""Whose set it is and by which rules it is kept; values that the caller makes once."""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from governor.errors import invalid
from governor.kube.applyset.diff import Ignored

_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_FORBIDDEN: Final = re.compile(r"[/%\x00-\x1f\x7f\ud800-\udfff]")


def is_name(text: str) -> bool:
    """Whether it can be one part of a request path, which every name becomes."""
    return bool(text) and text not in {".", ".."} and len(text) <= 253 and not _FORBIDDEN.search(text)


def is_namespace(text: str) -> bool:
    """Whether it is a DNS label."""
    return _NAMESPACE.fullmatch(text) is not None


_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


class Owner(msgspec.Struct, frozen=True):
    """Whose objects these are, and which ConfigMap of their cluster holds the inventory."""

    id: str
    """Written on every object of the set as a label; no other set in this cluster may have the same."""
    namespace: str
    name: str

    def __post_init__(self) -> None:
        if not _LABEL_VALUE.fullmatch(self.id):
            raise invalid("owner-id", f"{self.id!r} cannot be a label's value: take at most 63 letters, digits, -_.")
        if not (is_namespace(self.namespace) and is_name(self.name)):
            raise invalid("owner-place", f"{self.namespace}/{self.name} cannot be the name of a ConfigMap")


class Settings(msgspec.Struct, frozen=True):
    """How the objects of a set are written, and removed again."""

    manager: str
    """The field manager. Sets that may share an object need one each: giving it up gives up all of its fields."""
    prefix: str
    """The DNS name before the slash in the labels of the set."""
    default_namespace: str = ""
    """For manifests without one; if empty such manifests are refused."""
    allowed_namespaces: frozenset[str] | None = None
    """If given, nothing outside of these is written or removed, and nothing that belongs to no namespace."""
    force: bool = False
    """Whether fields are taken from other managers without asking."""
    take_over: frozenset[str] = frozenset()
    """Managers whose fields, and with them the objects, become ours."""
    ignored: tuple[Ignored, ...] = ()
    """Fields that may differ: they are neither written over nor called drift."""
    keep: Mapping[str, str] = {}
    """Annotations, any of which on an object means that it is left when the set no longer wants it."""
    at_once: int = 8
    """How many objects are worked on side by side."""
    served_within_s: float = 60.0
    """How long a new definition may take until its kind is served."""
    removed_within_s: float = 60.0
    """How long the objects of one stage may take to go."""
    repair_limit: int = 3
    """After so many repairs a field is left to whoever keeps changing it."""
    repair_window_s: float = 3600.0
    """A field that stayed as wanted for so long begins to count anew."""

    @property
    def owner_label(self) -> str:
        """The label that says whose object it is: only its owner's set removes it."""
        return f"{self.prefix}/owner"

    @property
    def inventory_label(self) -> str:
        """The label on the ConfigMaps of an inventory."""
        return f"{self.prefix}/inventory"
