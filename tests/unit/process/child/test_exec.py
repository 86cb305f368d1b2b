"""Replacing the process by a program, and passing it its settings."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from governor.process.address import Address
from governor.process.child.exec import command_from, encode, settings_from


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    directory: Path = Path("/etc")
    listen: Address = Address("127.0.0.1", 0)


def test_settings_arrive_as_they_were_sent() -> None:
    settings = Settings(name='a "b" \n ü', directory=Path("/tmp/x y"), listen=Address("::1", 80))
    assert settings_from(Settings, [encode(settings)]) == settings


@pytest.mark.parametrize("arguments", [[], ["{}", "{}"]])
def test_a_program_started_by_hand_names_the_command_to_use(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="started by the command"):
        settings_from(Settings, arguments)


def test_exec_keeps_the_pid_and_none_of_the_loaded_modules(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("")
    (tmp_path / "program.py").write_text(
        "import os, sys\nprint(os.getpid(), sys.argv[1:], 'fractions' in sys.modules, os.getcwd() in sys.path)\n"
    )
    script = (
        "import fractions, os, msgspec\nfrom governor.process.child.exec import exec_module\n"
        "class S(msgspec.Struct):\n    a: int\nprint(os.getpid(), flush=True)\nexec_module('program', S(3))\n"
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


@pytest.mark.parametrize("kind", ["script", "module"])
def test_the_command_of_a_program_starts_it_again(tmp_path: Path, kind: str) -> None:
    """A script is found by its own path again, whose interpreter may be another one then."""
    body = "import sys\nfrom governor.process.child.exec import own_command\nprint(own_command())\n"
    script = tmp_path / "tool"
    script.write_text(f"#!{sys.executable}\n{body}")
    script.chmod(0o755)
    (tmp_path / "tool_module.py").write_text(body)
    module = [sys.executable, "-m", "tool_module"]
    argv = [str(script), "a", "b"] if kind == "script" else [*module, "a"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == repr(argv)


def test_the_command_is_passed_once() -> None:
    environ = {"GOVERNOR_COMMAND": '["governor","runtime-proxy"]'}
    assert command_from(environ) == ["governor", "runtime-proxy"]
    assert environ == {}
    assert command_from(environ) == []
