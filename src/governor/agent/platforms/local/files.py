"""How resources become files: one resource per file, named after it, and which files are loaded how. No I/O.

A Configuration is no resource to daprd but its ``--config`` file, so it stands outside the resources directory.
"""

import hashlib
from typing import Final

import msgspec

from governor.agent.verification.resources import marked
from governor.domain.dapr.kinds import is_secret_store
from governor.domain.documents import ResourceRef, resource_ref
from governor.values.trees import Manifest
from governor.yamltext import dump

RESOURCES: Final = "resources"
CONFIG: Final = "config"
YAML: Final = (".yaml", ".yml")


class ResourceFile(msgspec.Struct, frozen=True):
    """The file of one resource. ``key`` is its directory's role and its name; its content may hold secrets."""

    key: str
    ref: ResourceRef
    manifest: Manifest
    content: bytes
    digest: str

    def __repr__(self) -> str:
        return f"ResourceFile({self.key})"

    @property
    def rank(self) -> tuple[int, str]:
        """The order of writing: secret stores first, because other components ask them; then components."""
        if self.ref.kind != "Component":
            return 2, self.key
        return int(not is_secret_store(self.manifest)), self.key


def file_key(ref: ResourceRef) -> str:
    """Where a resource is written."""
    directory = CONFIG if ref.kind == "Configuration" else RESOURCES
    return f"{directory}/{ref.kind.lower()}.{ref.name}.yaml"


def is_config(key: str) -> bool:
    """Whether this is the file of a Configuration."""
    return key.startswith(f"{CONFIG}/")


def resource_file(manifest: Manifest, namespace: str) -> ResourceFile:
    """The file of a resource."""
    ref = resource_ref(manifest, namespace)
    placed = {**manifest, "metadata": {**manifest["metadata"], "namespace": ref.namespace}}
    content = dump(marked(placed) if ref.kind == "Configuration" else placed).encode()
    return ResourceFile(file_key(ref), ref, placed, content, content_digest(content))


def content_digest(content: bytes) -> str:
    """The digest of a file as it is on disk."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
