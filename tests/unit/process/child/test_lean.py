"""A process that becomes a program, and the settings that go with it."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from governor.process.address import Address
from governor.process.child.lean import encoded, given


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    directory: Path = Path("/etc")
    listen: Address = Address("127.0.0.1", 0)


def test_settings_arrive_as_they_were_sent() -> None:
    settings = Settings(name='a "b" \n ü', directory=Path("/tmp/x y"), listen=Address("::1", 80))
    assert given(Settings, [encoded(settings)]) == settings


@pytest.mark.parametrize("arguments", [[], ["{}", "{}"]])
def test_whoever_starts_such_a_program_by_hand_is_told_how_to(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="started by the command"):
        given(Settings, arguments)


def test_the_process_keeps_its_number_and_nothing_that_it_had_loaded(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("")
    (tmp_path / "program.py").write_text(
        "import os, sys\nprint(os.getpid(), sys.argv[1:], 'fractions' in sys.modules, os.getcwd() in sys.path)\n"
    )
    script = (
        "import fractions, os, msgspec\nfrom governor.process.child.lean import become\n"
        "class S(msgspec.Struct):\n    a: int\nprint(os.getpid(), flush=True)\nbecome('program', S(3))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(tmp_path)},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    before, after = done.stdout.splitlines()
    assert after == f"{before} ['{{\"a\":3}}'] False False"
