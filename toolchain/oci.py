"""Container images as OCI archives, written without a registry or build tool.

An archive also has the index that `docker load` read before Docker 25.

Layers are reproducible: sorted, with numeric owners and one timestamp, uncompressed. Equal trees give equal bytes and
digests. The contents of images are decided elsewhere.
"""

import hashlib
import io
import json
import platform
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from toolchain.errors import TestbedError

NONROOT = 65532
# In the reserved domain .test, so that no runtime pulls the image from a registry.
LOCAL = "local.test"
_NAME = "io.containerd.image.name"
_SCHEMA = "application/vnd.oci.image"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class File:
    """A regular file; a path's content is read when the layer is written."""

    content: bytes | Path
    executable: bool = False


@dataclass(frozen=True)
class Directory:
    """A directory; the default is what implied parent directories get."""

    mode: int = 0o755
    owner: int = 0


@dataclass(frozen=True)
class Link:
    """A symbolic link."""

    target: str


Node = File | Directory | Link
Tree = Mapping[str, Node]


@dataclass(frozen=True)
class Layer:
    """A layer in a file."""

    title: str
    file: Path
    digest: str


@dataclass(frozen=True)
class Image:
    """An image's configuration and its layers, the lowest first."""

    name: str
    layers: tuple[Layer, ...]
    entrypoint: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: str = "/"
    volumes: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    user: int = NONROOT


@dataclass(frozen=True)
class Archive:
    """An image in a file, imported under its name."""

    name: str
    file: Path
    digest: str


def tree_of(directory: Path, at: str = "") -> dict[str, Node]:
    """Return everything below a directory, placed below a path of the image."""
    return {str(PurePosixPath(at, path.relative_to(directory))): _node(path) for path in directory.rglob("*")}


def _node(path: Path) -> Node:
    if path.is_symlink():
        return Link(str(path.readlink()))
    if path.is_dir():
        return Directory()
    return File(path, executable=bool(path.stat().st_mode & 0o100))


def write_layer(title: str, tree: Tree, file: Path) -> Layer:
    """Write a tree as a layer, with the parent directories that its paths imply."""
    complete: dict[str, Node] = {**dict.fromkeys(_parents(tree), Directory()), **tree}
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(complete):
            _add(archive, path, complete[path])
    return read_layer(title, file)


def read_layer(title: str, file: Path) -> Layer:
    """Return a layer written before."""
    with file.open("rb") as content:
        return Layer(title, file, f"sha256:{hashlib.file_digest(content, 'sha256').hexdigest()}")


def _parents(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        if path.startswith("/") or ".." in PurePosixPath(path).parts:
            raise TestbedError(f"{path!r} is not a valid layer path: it must be relative, without '..'")
        yield from (str(parent) for parent in PurePosixPath(path).parents if parent.name)


def _add(archive: tarfile.TarFile, path: str, node: Node) -> None:
    member = tarfile.TarInfo(path)
    match node:
        case Link(target):
            member.type, member.mode, member.linkname = tarfile.SYMTYPE, 0o777, target
            archive.addfile(member)
        case Directory(mode, owner):
            member.type, member.mode, member.uid, member.gid = tarfile.DIRTYPE, mode, owner, owner
            archive.addfile(member)
        case File(content, executable):
            member.mode = 0o755 if executable else 0o644
            data = content if isinstance(content, bytes) else content.read_bytes()
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def write_archive(image: Image, file: Path) -> Archive:
    """Write an image atomically."""
    config = _encoded(_config(image))
    manifest = _encoded(_manifest(image, config))
    small = {
        "oci-layout": _encoded({"imageLayoutVersion": "1.0.0"}),
        "index.json": _encoded(_index(image, manifest)),
        "manifest.json": _encoded(_docker_index(image, config)),
    }
    blobs: dict[str, bytes | Path] = {_digest(config): config, _digest(manifest): manifest}
    blobs |= {layer.digest: layer.file for layer in image.layers}
    members = {**small, **{_path(digest): blob for digest, blob in blobs.items()}}
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.name}-") as scratch:
        unfinished = Path(scratch, "archive")
        with tarfile.open(unfinished, "w", format=tarfile.PAX_FORMAT) as archive:
            for name in sorted(members, reverse=True):  # the indexes and layout first, for streaming readers
                _add_blob(archive, name, members[name])
        unfinished.replace(file)
    return Archive(image.name, file, _digest(manifest))


def read_archive(file: Path) -> Archive:
    """Return an archive written before."""
    with tarfile.open(file) as archive:
        index = archive.extractfile("index.json")
        if index is None:
            raise TestbedError(f"{file} is not an image archive: index.json is not a file")
        (manifest,) = json.load(index)["manifests"]
    return Archive(manifest["annotations"][_NAME], file, manifest["digest"])


def _add_blob(archive: tarfile.TarFile, name: str, blob: bytes | Path) -> None:
    member = tarfile.TarInfo(name)
    with io.BytesIO(blob) if isinstance(blob, bytes) else blob.open("rb") as content:
        member.size = content.seek(0, io.SEEK_END)
        content.seek(0)
        archive.addfile(member, content)


def _config(image: Image) -> dict[str, Any]:
    settings = {
        "User": f"{image.user}:{image.user}",
        "Env": [f"{name}={value}" for name, value in image.environment.items()],
        "Entrypoint": image.entrypoint,
        "Cmd": image.arguments,
        "WorkingDir": image.directory,
        "Volumes": {path: {} for path in image.volumes},
        "Labels": dict(image.labels),
    }
    return {
        "architecture": architecture(),
        "os": "linux",
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in image.layers]},
        "history": [{"created_by": layer.title} for layer in image.layers],
    }


def _manifest(image: Image, config: bytes) -> dict[str, Any]:
    layers = [(layer.digest, layer.file.stat().st_size) for layer in image.layers]
    return {
        "schemaVersion": 2,
        "mediaType": f"{_SCHEMA}.manifest.v1+json",
        "config": _descriptor("config.v1+json", _digest(config), len(config)),
        "layers": [_descriptor("layer.v1.tar", digest, size) for digest, size in layers],
    }


def _index(image: Image, manifest: bytes) -> dict[str, Any]:
    tag = image.name.rpartition(":")[2]
    names = {_NAME: image.name, "org.opencontainers.image.ref.name": tag}
    described = _descriptor("manifest.v1+json", _digest(manifest), len(manifest))
    where = {"architecture": architecture(), "os": "linux"}
    return {"schemaVersion": 2, "manifests": [{**described, "platform": where, "annotations": names}]}


def _docker_index(image: Image, config: bytes) -> list[dict[str, Any]]:
    layers = [_path(layer.digest) for layer in image.layers]
    return [{"Config": _path(_digest(config)), "RepoTags": [image.name], "Layers": layers}]


def _path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _descriptor(kind: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": f"{_SCHEMA}.{kind}", "digest": digest, "size": size}


def architecture() -> str:
    """Return this machine's architecture in OCI terms."""
    if platform.machine() not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise TestbedError(f"images for {platform.machine()} are not supported; supported are {known}")
    return _ARCHITECTURES[platform.machine()]


def _encoded(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
