"""The set-up makes a working copy ready: empty HOME, no virtual environment, no Go on the PATH.

What downloads or compiles much is in ``make soak``: the complete lock, and all from an empty cache. Here the set-up
has uv and its downloads, and installs only what the project's own build needs. Installing Debian packages would change
this machine and is not tested.
"""

import os
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from testbed.builds.dapr import VERSION
from tests.integration.working_copy import copy_repository
from toolchain import cache
from toolchain.repository import REPOSITORY, pinned_version
from toolchain.uv import UV

SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
FIRST_STEP = "create an environment with pip"


@dataclass(frozen=True)
class Copy:
    """A copy of the repository with an empty home directory and cache."""

    directory: Path
    environment: dict[str, str]

    @property
    def cache(self) -> Path:
        return Path(self.environment["XDG_CACHE_HOME"], "runtime-governor")

    @property
    def lock(self) -> Path:
        return self.directory / "requirements" / "dev.txt"

    @property
    def python(self) -> Path:
        return self.directory / ".venv" / "bin" / "python"

    def share_uv(self) -> Path:
        """Put this machine's uv and its downloads, which are verified by their hashes, into the cache; return uv."""
        uv = cache.ensure(UV)
        (cache.root() / "uv-cache").mkdir(exist_ok=True)
        self.cache.mkdir(parents=True)
        for name in (UV.key, "uv-cache"):
            (self.cache / name).symlink_to(cache.root() / name)
        return uv

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
    return Copy(copy_repository(tmp_path / "copy"), _nothing_yet(tmp_path))


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


def test_set_up_installs_the_lock_and_the_project_once(copy: Copy) -> None:
    uv = copy.share_uv()
    copy.lock.write_text("".join(filter(is_of_build_system, blocks(copy.lock))))
    copy.printed("make", "environment")

    imported = copy.printed(copy.python, "-c", "import governor; print(governor.__file__)").strip()
    assert Path(imported).is_relative_to(copy.directory / "src")
    present = installed(copy.printed(uv, "pip", "freeze", "--python", copy.python))
    assert present >= locked(copy.lock) > set()

    again = copy.run("make", "environment")
    assert (again.returncode, again.stderr) == (0, ""), "a second run has nothing to do"


def test_an_interrupted_set_up_says_so_and_leaves_no_entry(copy: Copy) -> None:
    printed = interrupt_at(FIRST_STEP, copy, "make", "environment")
    assert FIRST_STEP in printed, printed
    assert "interrupted; the next run continues from here" in printed
    assert not list(copy.cache.glob("*uv-*")), "an interrupted build must leave no entry"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_set_up_from_nothing_to_the_end(copy: Copy) -> None:
    first = copy.printed("make", "servers")
    paths = dict(line.split(": ") for line in first.splitlines())
    assert copy.printed(paths["daprd"], "--version").strip() == VERSION
    assert Path(paths["daprd"]).is_relative_to(copy.cache)
    assert "Redis server" in copy.printed(paths["redis"], "--version")

    (uv,) = copy.cache.glob("uv-*/bin/uv")
    assert "are compatible" in copy.run(uv, "pip", "check", "--python", copy.python).stderr
    assert installed(copy.printed(uv, "pip", "freeze", "--python", copy.python)) >= locked(copy.lock)
    (go,) = copy.cache.glob("go-*/go/bin/go")
    assert f"go{pinned_version(REPOSITORY / 'requirements' / 'go.txt')} " in copy.printed(go, "version")

    again = copy.run("make", "servers")
    assert (again.returncode, again.stdout, again.stderr) == (0, first, "")


def test_without_a_supported_python_the_packages_to_install_are_named(copy: Copy) -> None:
    result = copy.run("env", "PYTHON=no-such-python", "make", "environment")
    assert result.returncode != 0
    assert "PYTHON=no-such-python does not run as Python 3.11 or newer" in result.stderr
    assert "sudo apt-get install --yes python3 python3-venv" in result.stderr
    assert not (copy.directory / ".venv").exists()


def test_a_failing_set_up_step_names_itself_and_its_log(copy: Copy) -> None:
    copy.share_uv()
    copy.lock.write_text("msgspec==0.0.0\n")  # without a hash
    result = copy.run("make", "environment")
    assert result.returncode != 0
    failure = re.search(r'step "install the locked dependencies" failed .*its log is (\S+)', result.stderr)
    assert failure is not None, result.stderr
    # uv wraps its messages at the width of the terminal.
    message = " ".join(Path(failure[1]).read_text().split())
    assert "must have a hash, but none were provided for: msgspec==0.0.0" in message


@pytest.mark.parametrize("lock", sorted((REPOSITORY / "requirements").glob("*.txt")), ids=lambda lock: lock.name)
def test_a_lock_pins_and_hashes_everything_and_names_no_index(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    assert "index-url" not in text
    requirements = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert requirements
    for requirement in requirements:
        assert re.match(r"[a-z0-9.\[\]-]+==\S+( ;.*)? \\$", requirement), requirement


def blocks(lock: Path) -> list[str]:
    """Return the requirements of a lock, each with its hashes."""
    return re.findall(r"^\S+==.*\n(?:    .*\n)*", lock.read_text(), re.MULTILINE)


def is_of_build_system(requirement: str) -> bool:
    """Return whether the project's own build needs it: hatchling, what is locked for it, and editables."""
    return requirement.startswith(("editables==", "hatchling==")) or bool(re.search(r"# .*\bhatchling\n", requirement))


def locked(lock: Path) -> set[str]:
    """Return the pins of a lock without environment markers."""
    return {line.split()[0] for line in lock.read_text().splitlines() if "==" in line and ";" not in line}


def installed(freeze: str) -> set[str]:
    return {line.lower().replace("_", "-") for line in freeze.splitlines()}
