"""Assembling the image is reproducible, and leaves no path of the machine in it."""

import filecmp
import json
import os
import re
import subprocess
import sys
import tarfile
from email.message import Message
from pathlib import Path, PurePosixPath
from typing import IO, Any

import pytest

from deploy.image.assemble import PROGRAMS, _labels, main
from deploy.image.interpreter import inspect
from deploy.image.layers import Product, program_layer, python_layer
from governor.reconciler.render import frames
from tests.integration.deploy.assembly import REVISION, assemble
from tests.integration.working_copy import copy_repository
from toolchain import cache
from toolchain.oci import Archive, Layer, read_archive
from toolchain.repository import REPOSITORY, VENV_PYTHON

DEBIAN = Path("/usr/bin/python3")
OWN = (".pyenv/versions", ".local/share/uv/python")


def copied(directory: Path) -> Path:
    """Return a copy of the repository that shares only the virtual environment with the original."""
    copy = copy_repository(directory)
    (copy / ".venv").symlink_to(REPOSITORY / ".venv")
    return copy


def blob(archive: tarfile.TarFile, digest: str) -> IO[bytes]:
    content = archive.extractfile(f"blobs/{digest.replace(':', '/')}")
    assert content is not None
    return content


def config_of(file: Path) -> dict[str, Any]:
    with tarfile.open(file) as archive:
        manifest = json.load(blob(archive, read_archive(file).digest))
        config: dict[str, Any] = json.load(blob(archive, manifest["config"]["digest"]))
    return config


def members_of(file: Path) -> list[list[tarfile.TarInfo]]:
    """Return the members of each layer."""
    with tarfile.open(file) as archive:
        manifest = json.load(blob(archive, read_archive(file).digest))
        return [_members(blob(archive, layer["digest"])) for layer in manifest["layers"]]


def _members(layer: IO[bytes]) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=layer) as members:
        return members.getmembers()


def habits(directory: Path) -> dict[str, str]:
    """Return the environment of a user with habits."""
    return {"TZ": "Asia/Tokyo", "LANG": "de_DE.UTF-8", "PYTHONHASHSEED": "7", "TMPDIR": str(directory)}


def test_the_bytes_do_not_depend_on_directory_umask_and_environment(archive: Archive, tmp_path: Path) -> None:
    copy = copied(tmp_path / "elsewhere" / "copy")
    file = tmp_path / "again.tar"
    assemble(
        "--revision",
        REVISION,
        "--output",
        file,
        directory=copy,
        umask=0o077,
        environment=habits(tmp_path / "elsewhere"),
    )

    assert read_archive(file).digest == archive.digest
    assert filecmp.cmp(file, archive.file, shallow=False)
    assert_no_machine_paths(file, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_bytes_do_not_depend_on_the_cache(archive: Archive, tmp_path: Path) -> None:
    """Assemble everything, the Python of the image too, from an empty cache and with other habits."""
    file = tmp_path / "again.tar"
    (tmp_path / "elsewhere").mkdir()
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache"), **habits(tmp_path / "elsewhere")}
    assemble("--revision", REVISION, "--output", file, umask=0o077, environment=environment)

    assert read_archive(file).digest == archive.digest
    assert filecmp.cmp(file, archive.file, shallow=False)
    assert_no_machine_paths(file, tmp_path)


def assert_no_machine_paths(file: Path, directory: Path) -> None:
    content = file.read_bytes()
    for place in (directory, REPOSITORY, cache.root(), Path.home() / ".pyenv", inspect(VENV_PYTHON).prefix):
        assert str(place) == "/usr" or str(place).encode() + b"/" not in content, place


def test_all_members_have_one_timestamp_and_owner(archive: Archive) -> None:
    members = [member for layer in members_of(archive.file) for member in layer]

    assert {member.mtime for member in members} == {0}
    assert {member.name: member.uid for member in members if member.uid} == {"var/lib/governor": 65532}
    writable = {member.name for member in members if member.mode & 0o022 and not member.issym()}
    assert writable == {"tmp"}


def test_only_directories_are_in_two_layers(archive: Archive) -> None:
    files = [member.name for layer in members_of(archive.file) for member in layer if not member.isdir()]

    assert len(files) == len(set(files))


def test_the_product_is_a_small_last_layer(archive: Archive) -> None:
    python, helm, renderer, product = members_of(archive.file)

    assert {PurePosixPath(member.name).parts[0] for member in product} == {"opt", "var"}
    assert any(member.name.endswith("/governor/cli/main.py") for member in product)
    assert any(member.name.endswith("/governor/charts/governor-agent/Chart.yaml") for member in product)
    assert not any("/site-packages/governor" in member.name for member in python)
    assert [member.name for member in helm if member.isfile()] == ["usr/bin/helm"]
    assert [member.name for member in renderer if member.isfile()] == ["usr/bin/governor-renderer"]
    assert sum(member.size for member in product) * 10 < sum(member.size for member in python)


def test_only_the_intended_commands_are_executable(archive: Archive) -> None:
    members = [member for layer in members_of(archive.file) for member in layer]
    commands = {member.name for member in members if "bin" in PurePosixPath(member.name).parent.parts}

    assert commands == {
        "opt/venv/bin/governor",
        "opt/venv/bin/python3",
        "usr/bin/governor-renderer",
        "usr/bin/helm",
        f"usr/bin/{inspect(VENV_PYTHON).name}",
    }


def test_every_module_is_compiled_and_installer_records_are_removed(archive: Archive) -> None:
    python, *_, product = members_of(archive.file)
    names = {member.name for member in (*python, *product)}
    sources = {PurePosixPath(name) for name in names if name.endswith(".py")}
    tag = sys.implementation.cache_tag

    missing = [path for path in sources if str(path.parent / "__pycache__" / f"{path.stem}.{tag}.pyc") not in names]
    assert missing == []
    assert len(sources) > 1000
    assert not [name for name in names if re.search(r"/(INSTALLER|REQUESTED|direct_url\.json)$", name)]
    assert not [name for name in names if re.search(r"/python3\.\d+/(test|idlelib|tkinter|ensurepip|lib2to3)/", name)]


def test_the_image_has_labels(archive: Archive) -> None:
    settings = config_of(archive.file)["config"]

    version = archive.name.rpartition(":")[2]
    assert settings["Labels"]["org.opencontainers.image.title"] == "runtime-governor"
    assert settings["Labels"]["org.opencontainers.image.version"] == version
    assert settings["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert settings["Labels"]["org.opencontainers.image.revision"] == REVISION


def test_without_a_revision_there_is_no_such_label() -> None:
    metadata = Message()
    for header in ("Name", "Summary", "Version", "License-Expression"):
        metadata[header] = "x"
    labels = _labels(Product(Layer("product", Path(), ""), metadata), "")

    assert sorted(name.rpartition(".")[2] for name in labels) == ["description", "licenses", "title", "version"]


def test_the_containerfile_describes_the_same_image(archive: Archive) -> None:
    text = (REPOSITORY / "deploy" / "image" / "Containerfile").read_text().partition("FROM scratch")[2]
    lines = dict(line.split(" ", 1) for line in text.replace(" \\\n", "").strip().splitlines())
    settings = config_of(archive.file)["config"]

    assert sorted(lines["ENV"].split()) == sorted(settings["Env"])
    assert lines["USER"] == settings["User"]
    assert lines["WORKDIR"] == settings["WorkingDir"]
    assert json.loads(lines["VOLUME"]) == list(settings["Volumes"])
    assert json.loads(lines["ENTRYPOINT"]) == settings["Entrypoint"]


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_the_containerfiles_build_stage_works(tmp_path: Path) -> None:
    """Run the build stage without its base image: with Debian's Python and an empty home directory."""
    stage = (REPOSITORY / "deploy" / "image" / "Containerfile").read_text().partition("FROM scratch")[0]
    copy = copied(tmp_path / "copy")
    source = tmp_path / "source"
    source.mkdir()
    for line in re.findall(r"^COPY (.+) \S+$", stage, re.MULTILINE):
        for name in line.split():
            (copy / name).rename(source / name)
    command = re.findall(r"^RUN (tools/.+)$", stage, re.MULTILINE)[0].replace("/image", str(tmp_path / "root"), 1)
    network = ("_proxy", "_PROXY", "PIP_CERT", "SSL_CERT_FILE")
    kept = {name: value for name, value in os.environ.items() if name.endswith(network)}
    environment = {**kept, "HOME": str(tmp_path), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    result = subprocess.run(
        ["sh", "-c", command], cwd=source, env=environment, capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stderr
    assert (tmp_path / "root" / "opt/venv/bin/governor").exists()
    assert (tmp_path / "root" / "usr/bin/governor-renderer").exists()


@pytest.mark.parametrize("command", [[], ["--output", "x", "--root", "y"]], ids=["neither", "both"])
def test_exactly_one_output_is_required(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["assemble", *command])
    with pytest.raises(SystemExit) as failure:
        main()

    assert failure.value.code == 2
    assert "--output" in capsys.readouterr().err


def test_a_program_other_than_python_is_rejected_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["assemble", "--python", "/bin/true", "--output", str(tmp_path / "x")])

    assert main() == 1
    assert "/bin/true is not a working Python" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def pythons() -> list[Any]:
    """Return Debian's Python, which is linked statically, and in soak runs those of this user."""
    own = {python.resolve() for place in OWN for python in Path.home().glob(f"{place}/*/bin/python3.1[1-9]")}
    others = own - {VENV_PYTHON.resolve(), DEBIAN.resolve()}
    return [DEBIAN, *(pytest.param(python, marks=pytest.mark.soak) for python in sorted(others))]


@pytest.mark.parametrize("python", pythons(), ids=str)
def test_a_root_file_system_of_any_python_is_that_of_the_layers_and_runs(
    python: Path, archive: Archive, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    assemble("--python", python, "--root", root)

    layers = (python_layer(inspect(python)), *map(program_layer, PROGRAMS))
    product = [member.name for member in members_of(archive.file)[-1]]
    expected = {without_version(name) for name in (*product, *(name for layer in layers for name in names_in(layer)))}
    assert {without_version(str(path.relative_to(root))) for path in root.rglob("*")} == expected

    def output(*command: str) -> bytes:
        return subprocess.run(["chroot", root, *command], input=b"", capture_output=True, check=True).stdout

    version = archive.name.rpartition(":")[2]
    assert output("/opt/venv/bin/governor", "--version").decode() == f"governor, version {version}\n"
    check = "import sys, governor.server.main, governor.agent.main, ssl, sqlite3, uvloop; print(sys.version)"
    assert output("/opt/venv/bin/python3", "-c", check).decode().strip() == inspect(python).build
    frames.check_ready(output("/usr/bin/governor-renderer")[frames.HEAD_BYTES :])


def names_in(layer: Layer) -> list[str]:
    with layer.file.open("rb") as content:
        return [member.name for member in _members(content)]


def without_version(name: str) -> str:
    """Return a path without the version of Python, which the parts of another image may not share."""
    return re.sub(r"python-?3\.?\d+", "python", name)
