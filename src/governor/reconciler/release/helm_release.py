"""Helm's own record of a release, in a Secret of the release's namespace: its revision, state and objects."""

import base64
import zlib
from typing import Final

import msgspec

from governor import yamltext
from governor.errors import GovernorError, Kind
from governor.kube.client import Client
from governor.kube.objects import Object, ObjectRef, ref_of
from governor.reconciler.core_kinds import SECRETS
from governor.reconciler.release.adoption import Release

DEPLOYED: Final = "deployed"
_KEY: Final = "release"
_MAX_BYTES: Final = 64 * 1024 * 1024


class _Info(msgspec.Struct, frozen=True):
    status: str = ""


class HelmRecord(msgspec.Struct, frozen=True):
    """One revision of a release."""

    version: int
    """Number of the revision; the first one was installed."""
    info: _Info = _Info()
    manifest: str = ""
    """All objects but hooks, as YAML."""

    @property
    def status(self) -> str:
        """Return the state of the revision, such as deployed or pending-upgrade."""
        return self.info.status

    def objects(self) -> list[ObjectRef]:
        """Return what the release consists of; a manifest may leave out the namespace."""
        documents = yamltext.load(self.manifest.encode(), "the manifest of the Helm release")
        return [ref_of(each.value) for each in documents if isinstance(each.value, dict) and each.value.get("kind")]


async def read_release(client: Client, release: Release) -> HelmRecord | None:
    """Return the newest revision of a release, or None if there is none. PRECONDITION if it cannot be read."""
    labels = f"owner=helm,name={release.name}"
    found = [each async for each in client.list(SECRETS, release.namespace, labels=labels, metadata_only=True)]
    if not found:
        return None
    newest = max(found, key=_revision)["metadata"]["name"]
    return decode(await client.get(SECRETS, newest, release.namespace))


def _revision(secret: Object) -> int:
    text = str((secret["metadata"].get("labels") or {}).get("version", ""))
    return int(text) if text.isdecimal() else 0


def decode(secret: Object) -> HelmRecord:
    """Return the content of Helm's Secret: JSON, compressed, in base64 twice."""
    try:
        packed = base64.b64decode(base64.b64decode((secret.get("data") or {})[_KEY]))
        return msgspec.json.decode(_unpacked(packed), type=HelmRecord)
    except (KeyError, ValueError, zlib.error, EOFError, msgspec.MsgspecError) as error:
        place = f"{secret['metadata']['namespace']}/{secret['metadata']['name']}"
        message = f"Helm's record of the release, Secret {place}, cannot be read: {error}"
        raise GovernorError(Kind.PRECONDITION, "helm-record", message) from error


def _unpacked(packed: bytes) -> bytes:
    if not packed.startswith(b"\x1f\x8b"):  # of an old version of Helm
        return packed
    decompressor = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    text = decompressor.decompress(packed, _MAX_BYTES)
    if decompressor.unconsumed_tail or not decompressor.eof:
        raise ValueError("it is not complete, or too large")
    return text
