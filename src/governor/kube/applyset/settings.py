"""Who owns an apply set and how its objects are applied, pruned and repaired."""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from governor.errors import invalid
from governor.kube.applyset.diff import IgnoredFields

_DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NOT_IN_PATH_SEGMENT: Final = re.compile(r"[/%\x00-\x1f\x7f\ud800-\udfff]")
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def is_name(text: str) -> bool:
    """Return whether the text is safe as one segment of a request path; the API server checks the rest."""
    return bool(text) and text not in {".", ".."} and len(text) <= 253 and not _NOT_IN_PATH_SEGMENT.search(text)


def is_namespace(text: str) -> bool:
    """Return whether the text is a DNS label."""
    return _DNS_LABEL.fullmatch(text) is not None


class Owner(msgspec.Struct, frozen=True):
    """The owner of an apply set and the ConfigMap that holds its inventory."""

    id: str
    """Value of the owner label on every object of the set; unique in the cluster."""
    namespace: str
    """Namespace of the inventory ConfigMap."""
    name: str
    """Name of the inventory ConfigMap."""

    def __post_init__(self) -> None:
        if not _LABEL_VALUE.fullmatch(self.id):
            raise invalid(
                "owner-id", f"{self.id!r} is not a label value: use at most 63 letters, digits, '-', '_', '.'"
            )
        if not (is_namespace(self.namespace) and is_name(self.name)):
            raise invalid("owner-place", f"{self.namespace}/{self.name} is not a valid ConfigMap name")


class Settings(msgspec.Struct, frozen=True):
    """How the objects of a set are applied, pruned and repaired."""

    manager: str
    """Field manager. Sets that may share an object need different ones: releasing it gives up all of its fields."""
    label_prefix: str
    """DNS name before the slash in the labels of the set."""
    default_namespace: str = ""
    """Namespace of manifests that have none; if empty, such manifests are rejected."""
    allowed_namespaces: frozenset[str] | None = None
    """If given, only objects in these namespaces are written or pruned, and no cluster-scoped ones."""
    force_conflicts: bool = False
    """Whether fields are taken from other managers on conflict."""
    adopted_managers: frozenset[str] = frozenset()
    """Managers whose fields, and with them the objects, the set adopts."""
    ignored_fields: tuple[IgnoredFields, ...] = ()
    """Fields that keep their live values and never count as drift."""
    keep_annotations: Mapping[str, str] = {}
    """An object with any of these annotations is kept when it is no longer desired."""
    concurrency: int = 8
    """Number of objects that are processed at a time."""
    served_timeout_s: float = 60.0
    """How long to wait until the kind of a new CustomResourceDefinition is served."""
    repair_limit: int = 3
    """After this many repairs within the window a field is no longer repaired."""
    repair_window_s: float = 3600.0
    """Repairs older than this no longer count."""

    @property
    def owner_label(self) -> str:
        """Return the label that names the owner; only the owner's set prunes the object."""
        return f"{self.label_prefix}/owner"

    @property
    def inventory_label(self) -> str:
        """Return the label of the inventory's ConfigMaps."""
        return f"{self.label_prefix}/inventory"
