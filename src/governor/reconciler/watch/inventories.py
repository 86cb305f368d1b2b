"""Views of the inventories of modules. Their entries are kept as the text that is stored, and decoded on demand."""

import functools
from collections.abc import Iterable
from typing import Final, cast

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset.entries import unpack
from governor.kube.applyset.inventory import FORMAT, Snapshot, StoredClaim, checksum
from governor.kube.readiness.kinds import GroupKind
from governor.kube.reflector import Metadata, View


class _NoLabels(msgspec.Struct, frozen=True, gc=False):
    """Placeholder for a struct with only the inventory label (``inventory_view``)."""

    owner: str = ""


class InventoryMetadata(Metadata, frozen=True):
    """Metadata of an inventory."""

    creation_timestamp: str = ""
    labels: _NoLabels = _NoLabels()


class InventoryData(msgspec.Struct, frozen=True, gc=False):
    """Content of an inventory, as ``kube.applyset.inventory`` writes it."""

    format: str = ""
    owner: str = ""
    claim: str = ""
    entries: str = ""
    digest: str = ""


class InventoryState(View, frozen=True):
    """The inventory of one apply set."""

    metadata: InventoryMetadata
    data: InventoryData = InventoryData()

    @property
    def owner(self) -> str:
        """Id of the apply set."""
        return self.metadata.labels.owner

    @property
    def uid(self) -> str:
        """The uid of the ConfigMap."""
        return self.metadata.uid

    @property
    def resource_version(self) -> str:
        """The resourceVersion of the ConfigMap."""
        return self.metadata.resource_version

    @property
    def digest(self) -> str:
        """Digest of its content."""
        return self.data.digest

    def snapshot(self) -> Snapshot:
        """Return the decoded inventory; PRECONDITION if it is damaged, of another owner or of another format."""
        data = self.data
        if data.format != FORMAT or data.owner != self.owner:
            raise self._unusable("it is not an inventory of this owner, or not of this version")
        if data.digest != checksum(msgspec.to_builtins(data)):
            raise self._unusable("its content does not match its digest")
        try:
            claim = _decode_claim(data.claim)
        except msgspec.MsgspecError as error:
            raise self._unusable(f"its claim cannot be decoded: {error}") from error
        return Snapshot(unpack([data.entries]), self.uid, self.resource_version, claim)

    def kinds(self) -> frozenset[GroupKind]:
        """Return the kinds that the entries name; none if they cannot be decoded."""
        try:
            return frozenset((group, kind) for group, kind, _, _ in _decode_blocks(self.data.entries))
        except msgspec.MsgspecError:
            return frozenset()

    def _unusable(self, why: str) -> GovernorError:
        place = f"ConfigMap {self.metadata.namespace}/{self.metadata.name}"
        message = f"{place}: the inventory of {self.owner!r} cannot be used: {why}"
        return GovernorError(Kind.PRECONDITION, "inventory-damaged", message)


_decode_claim: Final = msgspec.json.Decoder(StoredClaim | None).decode
_decode_blocks: Final = msgspec.json.Decoder(list[tuple[str, str, str, msgspec.Raw]]).decode


@functools.cache
def inventory_view(label: str) -> type[InventoryState]:
    """Return the view of inventories whose owner is named by a label; one type for each label."""
    owner = ("owner", str, msgspec.field(name=label, default=""))
    labels = msgspec.defstruct("InventoryLabels", [owner], frozen=True, gc=False)
    metadata = msgspec.defstruct(
        "LabelledMetadata", [("labels", labels, labels())], bases=(InventoryMetadata,), frozen=True, gc=False
    )
    view = msgspec.defstruct(
        "LabelledInventory", [("metadata", metadata)], bases=(InventoryState,), frozen=True, gc=False
    )
    return cast("type[InventoryState]", view)


def oldest(inventories: Iterable[InventoryState]) -> InventoryState | None:
    """Return the inventory that was created first: the others of an owner are copies."""
    return min(inventories, key=lambda each: (each.metadata.creation_timestamp, each.metadata.name), default=None)
