"""Assembling the image is reproducible, and leaves no path of the machine in it."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import pytest

from deploy.image.interpreter import inspect
from testbed import images
from testbed.cri.containers import PrivateContainerd
from toolchain import cache
from toolchain.oci import Archive, read_archive
from toolchain.repository import REPOSITORY, VENV_PYTHON

DEBIAN = Path("/usr/bin/python3")
OWN = (".pyenv/versions", ".local/share/uv/python")


@dataclass(frozen=True)
class Copy:
    """A copy of the repository that shares only the virtual environment with the original."""

    directory: Path

    def assemble(self, *options: str | Path, cache_home: Path, umask: int = 0o022, **others: str) -> str:
        """Run the command and return its output."""
        command = [VENV_PYTHON, "-m", "deploy.image.assemble", *options]
        downloads = {"PIP_CACHE_DIR": str(cache.root().parent / "pip")}  # verified by hash, so sharing them is safe
        environment = {**os.environ, **downloads, "XDG_CACHE_HOME": str(cache_home), **others}
        result = subprocess.run(
            command, cwd=self.directory, env=environment, umask=umask, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout


def copied(source: Path, directory: Path) -> Copy:
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listing, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (source / name).is_file():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / name, directory / name)
    (directory / ".venv").symlink_to(REPOSITORY / ".venv")
    return Copy(directory)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    return images.governor(tmp_path_factory.mktemp("archive"))


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


@pytest.mark.timeout(600)
def test_the_digest_does_not_depend_on_directory_cache_and_environment(tmp_path: Path) -> None:
    """One directory uses the cache, the other none and a different environment."""
    first = copied(REPOSITORY, tmp_path / "first")
    second = copied(first.directory, tmp_path / "elsewhere" / "second")
    habits = {"TZ": "Asia/Tokyo", "LANG": "de_DE.UTF-8", "PYTHONHASHSEED": "7", "TMPDIR": str(tmp_path / "elsewhere")}

    first.assemble("--output", tmp_path / "first.tar", cache_home=cache.root().parent)
    second.assemble("--output", tmp_path / "second.tar", cache_home=tmp_path / "cache", umask=0o077, **habits)

    assert read_archive(tmp_path / "first.tar").digest == read_archive(tmp_path / "second.tar").digest
    assert (tmp_path / "first.tar").read_bytes() == (tmp_path / "second.tar").read_bytes()
    content = (tmp_path / "second.tar").read_bytes()
    for place in (tmp_path, REPOSITORY, cache.root(), Path.home() / ".pyenv", inspect(VENV_PYTHON).prefix):
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
    python, helm, product = members_of(archive.file)

    assert {PurePosixPath(member.name).parts[0] for member in product} == {"opt", "var"}
    assert any(member.name.endswith("/governor/cli/main.py") for member in product)
    assert not any("/site-packages/governor" in member.name for member in python)
    assert [member.name for member in helm if member.isfile()] == ["usr/bin/helm"]
    assert sum(member.size for member in product) * 10 < sum(member.size for member in python)


def test_only_the_intended_commands_are_executable(archive: Archive) -> None:
    members = [member for layer in members_of(archive.file) for member in layer]
    commands = {member.name for member in members if "bin" in PurePosixPath(member.name).parent.parts}

    assert commands == {
        "opt/venv/bin/governor",
        "opt/venv/bin/python3",
        "usr/bin/helm",
        f"usr/bin/{inspect(VENV_PYTHON).name}",
    }


def test_every_module_is_compiled_and_installer_records_are_removed(archive: Archive) -> None:
    python, _, product = members_of(archive.file)
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
    assert "org.opencontainers.image.revision" not in settings["Labels"]


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
    copy = copied(REPOSITORY, tmp_path / "copy").directory
    source = tmp_path / "source"
    source.mkdir()
    for line in re.findall(r"^COPY (.+) \S+$", stage, re.MULTILINE):
        for name in line.split():
            (copy / name).rename(source / name)
    command = re.findall(r"^RUN (tools/.+)$", stage, re.MULTILINE)[0].replace("/image", str(tmp_path / "root"), 1)
    kept = {name: value for name, value in os.environ.items() if name.endswith(("_proxy", "_PROXY", "PIP_CERT"))}
    environment = {**kept, "HOME": str(tmp_path), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    result = subprocess.run(
        ["sh", "-c", command], cwd=source, env=environment, capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stderr
    assert (tmp_path / "root" / "opt/venv/bin/governor").exists()


def test_the_root_file_system_is_that_of_the_layers(archive: Archive, tmp_path: Path) -> None:
    copied(REPOSITORY, tmp_path / "copy").assemble("--root", tmp_path / "root", cache_home=cache.root().parent)

    expected = {member.name for layer in members_of(archive.file) for member in layer}
    assert {str(path.relative_to(tmp_path / "root")) for path in (tmp_path / "root").rglob("*")} == expected
    command = ["chroot", str(tmp_path / "root"), "/opt/venv/bin/governor", "--version"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed == f"governor, version {archive.name.rpartition(':')[2]}\n"


def test_the_revision_is_a_label(tmp_path: Path) -> None:
    copy = copied(REPOSITORY, tmp_path / "copy")
    copy.assemble("--revision", "a1b2c3", "--output", tmp_path / "image.tar", cache_home=cache.root().parent)

    labels = config_of(tmp_path / "image.tar")["config"]["Labels"]
    assert labels["org.opencontainers.image.revision"] == "a1b2c3"


@pytest.mark.parametrize("command", [[], ["--output", "x", "--root", "y"]], ids=["neither", "both"])
def test_exactly_one_output_is_required(command: list[str]) -> None:
    argv = [sys.executable, "-m", "deploy.image.assemble", *command]
    result = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False)

    assert result.returncode == 2
    assert "--output" in result.stderr


def test_a_program_other_than_python_is_rejected_by_name(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "deploy.image.assemble", "--python", "/bin/true", "--output", str(tmp_path / "x")]
    result = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False)

    assert result.returncode == 1
    assert "/bin/true is not a working Python" in result.stderr
    assert not (tmp_path / "x").exists()


def pythons() -> list[Any]:
    """Return Debian's Python, which is linked statically, and in soak runs those of this user."""
    own = [python for place in OWN for python in Path.home().glob(f"{place}/*/bin/python3.1[1-9]")]
    executables = {inspect(python).executable for python in own if not python.is_symlink()}
    others = executables - {inspect(VENV_PYTHON).executable, inspect(DEBIAN).executable}
    return [DEBIAN, *(pytest.param(python, marks=pytest.mark.soak) for python in sorted(others))]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("python", pythons(), ids=str)
async def test_any_python_can_be_in_the_image(python: Path, tmp_path: Path) -> None:
    copy = copied(REPOSITORY, tmp_path / "copy")
    copy.assemble("--python", python, "--output", tmp_path / "image.tar", cache_home=cache.root().parent)
    archive = read_archive(tmp_path / "image.tar")

    async with PrivateContainerd(tmp_path / "containerd") as containerd:
        image = await containerd.import_image(archive)
        version = await containerd.run(image, "/opt/venv/bin/python3", "-c", "import sys; print(sys.version)")
        assert version.strip() == inspect(python).build
        printed = await containerd.run(image, "/opt/venv/bin/governor", "--version")
        assert printed == f"governor, version {archive.name.rpartition(':')[2]}\n"
        imports = "import governor.server.main, governor.agent.main, ssl, sqlite3, uvloop; print('all')"
        assert await containerd.run(image, "/opt/venv/bin/python3", "-c", imports) == "all\n"
