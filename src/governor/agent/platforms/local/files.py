"""Resource files: name, content and write order, one resource per file. No I/O.

daprd loads a Configuration by ``--config`` and not as a resource, so that file is outside the resources directory.
"""

import hashlib
from typing import Final

import msgspec

from governor.agent.verification.resources import with_marker
from governor.domain.dapr.kinds import is_secret_store
from governor.domain.documents import ResourceRef, resource_ref
from governor.values.trees import Manifest
from governor.yamltext import dump

RESOURCES: Final = "resources"
CONFIG: Final = "config"
_YAML: Final = (".yaml", ".yml")


class ResourceFile(msgspec.Struct, frozen=True):
    """The file of one resource. ``key`` is the directory's role and the file name; the content may hold secrets."""

    key: str
    ref: ResourceRef
    manifest: Manifest
    content: bytes
    digest: str

    def __repr__(self) -> str:
        return f"ResourceFile({self.key})"

    @property
    def rank(self) -> tuple[int, str]:
        """The write order: secret stores, which other components read, then components, then the rest."""
        if self.ref.kind != "Component":
            return 2, self.key
        return int(not is_secret_store(self.manifest)), self.key


def file_key(ref: ResourceRef) -> str:
    """Return the file key of a resource."""
    directory = CONFIG if ref.kind == "Configuration" else RESOURCES
    return f"{directory}/{ref.kind.lower()}.{ref.name}.yaml"


def is_yaml(name: str) -> bool:
    """Return whether daprd loads a file of this name; it ignores the case of the suffix."""
    return name.lower().endswith(_YAML)


def is_config(key: str) -> bool:
    """Return whether this is the key of a Configuration's file."""
    return key.startswith(f"{CONFIG}/")


def resource_file(manifest: Manifest, namespace: str) -> ResourceFile:
    """Return the file of a resource."""
    ref = resource_ref(manifest, namespace)
    placed = {**manifest, "metadata": {**manifest["metadata"], "namespace": ref.namespace}}
    content = dump(marked(placed)).encode()
    return ResourceFile(file_key(ref), ref, placed, content, content_digest(content))


def marked(manifest: Manifest) -> Manifest:
    """Return a manifest as its file has it: a Configuration with its marker."""
    return with_marker(manifest) if manifest["kind"] == "Configuration" else manifest


def content_digest(content: bytes) -> str:
    """Return the digest of a file's content."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
