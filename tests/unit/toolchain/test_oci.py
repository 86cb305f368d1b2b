"""OCI images: layers are reproducible, and every blob is named by its digest."""

import hashlib
import json
import os
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolchain.errors import TestbedError
from toolchain.oci import Directory, File, Image, Link, Node, read_archive, tree_of, write_archive, write_layer

NAMES = st.text(st.characters(categories=["L", "N"], include_characters=" ._-+"), min_size=1, max_size=40).filter(
    lambda name: name not in (".", "..")
)
NODES: st.SearchStrategy[Node] = st.one_of(
    st.builds(File, st.binary(max_size=60), st.booleans()),
    st.builds(Directory, st.sampled_from([0o755, 0o700, 0o1777]), st.sampled_from([0, 65532])),
    st.builds(Link, NAMES),
)
# Files at one depth and directories at another: no path lies below a file.
TREES = st.dictionaries(st.lists(NAMES, min_size=3, max_size=3).map("/".join), NODES, max_size=8)


def members(file: Path) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(file) as layer:
        return {member.name: member for member in layer}


def blobs(file: Path) -> dict[str, bytes]:
    with tarfile.open(file) as archive:
        return {member.name: read(archive, member) for member in archive}


def read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    content = archive.extractfile(member)
    assert content is not None
    return content.read()


@given(tree=TREES, seed=st.randoms(use_true_random=False))
def test_a_layer_does_not_depend_on_the_order_of_its_tree(tree: dict[str, Node], seed: Any) -> None:
    paths = list(tree)
    seed.shuffle(paths)
    with tempfile.TemporaryDirectory() as directory:
        one = write_layer("layer", tree, Path(directory, "one"))
        two = write_layer("layer", {path: tree[path] for path in paths}, Path(directory, "two"))
        assert one.digest == two.digest
        assert one.file.read_bytes() == two.file.read_bytes()


@given(tree=TREES)
def test_a_layer_contains_the_tree_and_implied_directories(tree: dict[str, Node]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        found = members(write_layer("layer", tree, Path(directory, "layer")).file)
    parents = {"/".join(path.split("/")[:depth]) for path in tree for depth in (1, 2)}
    assert set(found) == {*tree, *parents}
    assert all(found[parent].isdir() for parent in parents - tree.keys())
    assert list(found) == sorted(found), "a directory comes before what is in it"


def test_a_layer_does_not_depend_on_time_owner_and_umask(tmp_path: Path) -> None:
    digests = set()
    for number, (mask, time) in enumerate([(0o022, 1_000_000_000), (0o077, 1_700_000_000)]):
        before = os.umask(mask)
        try:
            source = tmp_path / f"{number}" / "directory"
            source.mkdir(parents=True)
            (source / "program").write_bytes(b"1")
        finally:
            os.umask(before)
        os.chown(source / "program", number, number)
        os.utime(source / "program", (time, time))
        digests.add(write_layer("layer", tree_of(tmp_path / f"{number}"), tmp_path / "layer").digest)
    assert len(digests) == 1


def test_executables_and_links_are_kept(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "program").touch(0o700)
    (source / "text").touch(0o600)
    (source / "link").symlink_to("program")
    found = members(write_layer("layer", tree_of(source, "usr/bin"), tmp_path / "layer").file)
    assert {name: oct(member.mode) for name, member in found.items() if member.isfile()} == {
        "usr/bin/program": "0o755",
        "usr/bin/text": "0o644",
    }
    assert found["usr/bin/link"].linkname == "program"


@pytest.mark.parametrize("path", ["/etc/passwd", "../outside", "etc/../../outside"])
def test_a_path_outside_of_the_image_is_rejected(path: str, tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="must be relative, without"):
        write_layer("layer", {path: File(b"")}, tmp_path / "layer")


@pytest.fixture
def image(tmp_path: Path) -> Image:
    lower = write_layer("lower", {"bin/program": File(b"program", executable=True)}, tmp_path / "lower")
    upper = write_layer("upper", {"etc/settings": File(b"settings")}, tmp_path / "upper")
    return Image(
        "local.test/thing:1.2",
        (lower, upper),
        entrypoint=("/bin/program", "--loud"),
        arguments=("--twice",),
        environment={"PATH": "/bin", "A": "b"},
        directory="/data",
        volumes=("/data",),
        labels={"org.opencontainers.image.title": "thing"},
    )


def test_every_blob_of_an_archive_is_named_by_its_digest(image: Image, tmp_path: Path) -> None:
    found = blobs(write_archive(image, tmp_path / "image.tar").file)
    named = {name: content for name, content in found.items() if name.startswith("blobs/sha256/")}
    assert len(named) == 4
    for name, content in named.items():
        assert name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"


def test_an_archives_index_references_manifest_config_and_layers(image: Image, tmp_path: Path) -> None:
    archive = write_archive(image, tmp_path / "image.tar")
    found = blobs(archive.file)

    def follow(descriptor: dict[str, Any]) -> bytes:
        content = found[f"blobs/{descriptor['digest'].replace(':', '/')}"]
        assert len(content) == descriptor["size"]
        return content

    assert json.loads(found["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (descriptor,) = json.loads(found["index.json"])["manifests"]
    assert descriptor["digest"] == archive.digest
    assert descriptor["annotations"]["io.containerd.image.name"] == "local.test/thing:1.2"
    assert descriptor["annotations"]["org.opencontainers.image.ref.name"] == "1.2"
    manifest = json.loads(follow(descriptor))
    config = json.loads(follow(manifest["config"]))
    layers = [follow(layer) for layer in manifest["layers"]]
    assert [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers] == config["rootfs"]["diff_ids"]
    assert [b"program" in layer for layer in layers] == [True, False], "the lowest first"


def test_the_config_describes_how_an_image_is_run(image: Image, tmp_path: Path) -> None:
    found = blobs(write_archive(image, tmp_path / "image.tar").file)
    (config,) = [json.loads(content) for content in found.values() if b'"rootfs"' in content]
    assert config["config"] == {
        "User": "65532:65532",
        "Env": ["PATH=/bin", "A=b"],
        "Entrypoint": ["/bin/program", "--loud"],
        "Cmd": ["--twice"],
        "WorkingDir": "/data",
        "Volumes": {"/data": {}},
        "Labels": {"org.opencontainers.image.title": "thing"},
    }
    assert [step["created_by"] for step in config["history"]] == ["lower", "upper"]


def test_an_archive_can_be_read_back(image: Image, tmp_path: Path) -> None:
    written = write_archive(image, tmp_path / "image.tar")
    assert read_archive(tmp_path / "image.tar") == written
    again = write_archive(image, tmp_path / "again.tar")
    assert again.digest == written.digest
    assert again.file.read_bytes() == written.file.read_bytes()


def test_a_failed_write_keeps_the_old_archive_and_leaves_no_files(
    image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "images"
    before = write_archive(image, place / "image.tar").file.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "addfile", fail)
    with pytest.raises(OSError, match="No space left"):
        write_archive(image, place / "image.tar")
    assert [path.name for path in place.iterdir()] == ["image.tar"]
    assert (place / "image.tar").read_bytes() == before
