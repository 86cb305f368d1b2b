"""The generated reference: complete, and the same on every machine."""

from pathlib import Path

import pytest

from governor.cli.main import COMMANDS
from governor.process.exit_codes import EXIT_CODE
from tools.generate_cli import outputs

CLI, EXITS = Path("docs/reference/cli.md"), Path("docs/reference/exit-codes.md")


def test_every_command_has_its_section() -> None:
    sections = [line.removeprefix("## ") for line in outputs()[CLI].splitlines() if line.startswith("## ")]
    assert {f"governor {name}" for name in COMMANDS} <= set(sections)
    assert {"governor get runtimes", "governor describe runtime", "governor token join"} <= set(sections)


def test_every_exit_code_has_its_row() -> None:
    rows = [line.split("|")[1:3] for line in outputs()[EXITS].splitlines() if line.startswith("| ")]
    codes = {name.strip(): code.strip() for code, name in rows}
    assert {kind: codes[kind] for kind in EXIT_CODE} == {kind: str(code) for kind, code in EXIT_CODE.items()}


def test_the_reference_does_not_depend_on_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = outputs()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("GOVERNOR_SERVER", "https://elsewhere")
    assert outputs() == here


def test_hidden_options_stay_hidden() -> None:
    apply = outputs()[CLI].split("## governor apply")[1].split("## ")[0]
    assert "--token-file" not in apply
    assert "--help" not in apply
