"""The set-up makes a working copy ready from nothing: empty HOME, empty cache, no Go on the PATH.

Compiling daprd from nothing takes minutes: here the set-up is interrupted where that begins, and ``make soak`` goes
on from there. Installing Debian packages would change this machine and is not tested.
"""

import os
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from testbed.builds.dapr import VERSION
from toolchain.repository import REPOSITORY, pinned_version

SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
COMPILATION = f"daprd {VERSION}: compile"


@dataclass(frozen=True)
class Copy:
    """A copy of the repository with an empty home directory and cache."""

    directory: Path
    environment: dict[str, str]

    @property
    def cache(self) -> Path:
        return Path(self.environment["XDG_CACHE_HOME"], "runtime-governor")

    def run(self, *argv: str | Path) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            argv, cwd=self.directory, env=self.environment, capture_output=True, text=True, check=False
        )

    def printed(self, *argv: str | Path) -> str:
        result = self.run(*argv)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    directory = tmp_path / "copy"
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    files = subprocess.run(listing, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, files):
        if (REPOSITORY / name).is_file():  # a file deleted but not yet committed is still listed
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((REPOSITORY / name).read_bytes())
            target.chmod((REPOSITORY / name).stat().st_mode)
    return Copy(directory, _nothing_yet(tmp_path))


def _nothing_yet(directory: Path) -> dict[str, str]:
    """Return the environment without user-specific variables, but with proxy and CA settings."""
    dropped = ("GO", "PYTHON", "PYENV", "VIRTUAL_ENV", "MAKE", "MFLAGS", "PYTEST", "XDG_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    home = {"HOME": str(directory / "home"), "XDG_CACHE_HOME": str(directory / "cache"), "PATH": SYSTEM_PATH}
    (directory / "home").mkdir()
    return {**kept, **home}


def interrupt_at(words: str, copy: Copy, *argv: str) -> str:
    """Interrupt the command when it prints these words, and return its whole output."""
    with subprocess.Popen(
        argv,
        cwd=copy.directory,
        env=copy.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        printed = ""
        for line in process.stderr:
            if words in line and words not in printed:
                # Only once: progress repeats the words, and a second interrupt would stop the cleanup.
                os.killpg(process.pid, signal.SIGINT)
            printed += line
    return printed


def build_hello(go: Path, copy: Copy) -> str:
    """Compile and run a small Go program, and return its output."""
    source = copy.directory.with_name("hello")
    source.mkdir()
    (source / "main.go").write_text('package main\nimport "os"\nfunc main() { os.Stdout.WriteString("hello") }\n')
    binary = source / "hello"
    copy.printed(go, "build", "-o", binary, source / "main.go")
    return copy.printed(binary)


@pytest.mark.timeout(600)
def test_set_up_from_nothing_until_daprd_is_compiled(copy: Copy) -> None:
    printed = interrupt_at(COMPILATION, copy, "make", "servers")
    assert COMPILATION in printed, printed
    assert "interrupted; the next run continues from here" in printed

    python = copy.directory / ".venv" / "bin" / "python"
    (uv,) = copy.cache.glob("uv-*/bin/uv")
    assert "are compatible" in copy.run(uv, "pip", "check", "--python", python).stderr
    imported = copy.printed(python, "-c", "import governor; print(governor.__file__)").strip()
    assert Path(imported).is_relative_to(copy.directory / "src")
    present = installed(copy.printed(uv, "pip", "freeze", "--python", python))
    assert present >= locked(copy.directory / "requirements" / "dev.txt")

    (go,) = copy.cache.glob("go-*/go/bin/go")
    assert f"go{pinned_version(REPOSITORY / 'requirements' / 'go.txt')} " in copy.printed(go, "version")
    assert build_hello(go, copy) == "hello"
    assert not list(copy.cache.glob("*daprd-*")), "an interrupted build must leave no entry"

    again = copy.run("make", "environment")
    assert (again.returncode, again.stderr) == (0, ""), "a second run has nothing to do"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_set_up_from_nothing_to_the_end(copy: Copy) -> None:
    first = copy.printed("make", "servers")
    paths = dict(line.split(": ") for line in first.splitlines())
    assert copy.printed(paths["daprd"], "--version").strip() == VERSION
    assert Path(paths["daprd"]).is_relative_to(copy.cache)
    assert "Redis server" in copy.printed(paths["redis"], "--version")
    again = copy.run("make", "servers")
    assert (again.returncode, again.stdout, again.stderr) == (0, first, "")


def test_without_a_supported_python_the_packages_to_install_are_named(copy: Copy) -> None:
    result = copy.run("env", "PYTHON=no-such-python", "make", "environment")
    assert result.returncode != 0
    assert "sudo apt-get install --yes python3 python3-venv" in result.stderr
    assert not (copy.directory / ".venv").exists()


def test_a_failing_set_up_step_names_itself_and_its_log(copy: Copy) -> None:
    (copy.directory / "requirements" / "dev.txt").write_text("msgspec==0.0.0 --hash=sha256:" + "0" * 64)
    result = copy.run("make", "environment")
    assert result.returncode != 0
    failure = re.search(r'step "install the locked dependencies" failed .*its log is (\S+)', result.stderr)
    assert failure is not None, result.stderr
    assert "msgspec==0.0.0" in Path(failure[1]).read_text()


@pytest.mark.parametrize("lock", sorted((REPOSITORY / "requirements").glob("*.txt")), ids=lambda lock: lock.name)
def test_a_lock_pins_and_hashes_everything_and_names_no_index(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    assert "index-url" not in text
    requirements = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert requirements
    for requirement in requirements:
        assert re.match(r"[a-z0-9.\[\]-]+==\S+( ;.*)? \\$", requirement), requirement


def locked(lock: Path) -> set[str]:
    """Return the pins of a lock without environment markers."""
    return {line.split()[0] for line in lock.read_text().splitlines() if "==" in line and ";" not in line}


def installed(freeze: str) -> set[str]:
    return {line.lower().replace("_", "-") for line in freeze.splitlines()}
