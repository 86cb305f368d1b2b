"""The root command: its imports, its exit codes and its global options."""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from governor.cli import main
from governor.cli.connection import read_token
from governor.cli.groups import Entry
from governor.cli.main import COMMANDS, cli, run
from governor.cli.options import connection_options, global_option
from governor.errors import GovernorError, Kind
from governor.process.exit_codes import BROKEN_PIPE, EXIT_CODE, INTERRUPTED, USAGE

SLOW = ("aiohttp", "asyncio", "rich", "yaml", "sqlalchemy", "governor.server", "governor.agent", "governor.domain")


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Add the commands ``probe`` (records the global options) and ``fail``, and return what was recorded."""
    seen: list[object] = []

    @click.command()
    @connection_options()
    def probe() -> int:
        seen.append((global_option("server"), global_option("token_file"), global_option("ca_file")))
        return 42

    @click.command()
    @click.argument("how", type=click.Choice(["interrupt", "defect", "denied"]))
    def fail(how: str) -> None:
        raise {
            "interrupt": KeyboardInterrupt(),
            "defect": ZeroDivisionError("by zero"),
            "denied": GovernorError(Kind.DENIED, "role", "not for you"),
        }[how]

    monkeypatch.setattr(main, "probe", probe, raising=False)
    monkeypatch.setattr(main, "fail", fail, raising=False)
    entries = {"probe": Entry("governor.cli.main:probe", ""), "fail": Entry("governor.cli.main:fail", "")}
    monkeypatch.setattr(cli, "entries", {**COMMANDS, **entries})
    return seen


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["no-such-command"]])
def test_the_root_imports_nothing_slow(arguments: list[str]) -> None:
    program = (
        "import sys; from governor.cli.main import run; run(sys.argv[1:]); "
        f"print([name for name in {SLOW} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"


def test_the_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(any(line.split()[:1] == [name] for line in lines) for name in COMMANDS)


def test_the_module_is_a_program_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "governor.cli.main", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert done.stdout.startswith("governor, version ")


def test_a_typo_suggests_the_closest_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["aply"]) == USAGE
    assert "Did you mean 'apply'?" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["apply"], ["--no-such-option"], ["get", "nothing"], ["delete", "orders"]])
def test_a_usage_error_exits_with_two(arguments: list[str]) -> None:
    assert run(arguments) == USAGE


def test_a_command_returns_its_exit_code(probe: list[object]) -> None:
    assert run(["probe"]) == 42
    assert probe == [(None, None, None)]


def test_global_options_are_accepted_before_and_after_the_command(
    probe: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOVERNOR_SERVER", "http://environment")
    monkeypatch.setenv("GOVERNOR_TOKEN_FILE", "environment")
    for arguments in (["probe"], ["--server", "http://before", "probe"]):
        run(arguments)
    run(["--server", "http://before", "--ca-file", "ca", "probe", "--server", "http://after", "--token-file", "after"])
    assert probe == [
        ("http://environment", Path("environment"), None),
        ("http://before", Path("environment"), None),
        ("http://after", Path("after"), Path("ca")),
    ]


def test_an_error_sets_the_exit_code_and_is_printed_on_stderr(
    probe: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fail", "denied"]) == EXIT_CODE[Kind.DENIED]
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: not for you\n")


def test_an_interrupt_has_its_exit_code(probe: list[object]) -> None:
    assert run(["fail", "interrupt"]) == INTERRUPTED


def test_an_unexpected_exception_exits_as_internal_with_its_traceback(
    probe: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fail", "defect"]) == EXIT_CODE[Kind.INTERNAL]
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_broken_pipe_has_its_exit_code_and_prints_nothing() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "governor.cli.main", "--help"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (BROKEN_PIPE, "")


LINT = ["runtime-proxy", "--hook-server-dir=/nowhere", "lint"]


def in_shell(arguments: Sequence[str], redirection: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    words = shlex.join([sys.executable, "-m", "governor.cli.main", *arguments])
    return subprocess.run(
        ["sh", "-c", f"{words} {redirection}"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **variables},
    )


@pytest.mark.parametrize("arguments", [["--help"], ["completion", "bash"], LINT, [*LINT, "-o", "json"]])
def test_a_full_output_device_is_reported(arguments: list[str]) -> None:
    done = in_shell(arguments, "> /dev/full")
    assert done.returncode == EXIT_CODE[Kind.EXHAUSTED]
    assert done.stderr == "error: cannot write the output: No space left on device\n"


@pytest.mark.parametrize("redirection", ["2> /dev/full", "2>&-"])
def test_an_error_keeps_its_exit_code_when_stderr_is_unusable(redirection: str) -> None:
    assert in_shell(["aply"], redirection).returncode == USAGE
    assert in_shell(["runtime-proxy", "--control-endpoint=/nowhere", "explain", "x"], redirection).returncode == 11


def test_a_path_is_checked_when_it_is_used_and_not_when_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting must behave the same as a flag and as an environment variable."""
    monkeypatch.setattr(os, "access", lambda *_args, **_kwargs: False)
    assert run(["runtime-proxy", f"--hook-server-dir={tmp_path}", "lint"]) == 0


def test_a_closed_output_is_no_error() -> None:
    done = in_shell(LINT, ">&-")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_input_has_no_documents() -> None:
    done = in_shell(["apply", "-f", "-"], "<&-")
    assert (done.returncode, done.stderr) == (3, "error: no documents found in -; nothing was sent\n")


def test_text_that_the_output_encoding_lacks_is_escaped(tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"\xff\xd0\xb6")
    odd.mkdir()
    done = in_shell([*LINT, str(odd)], "< /dev/null", PYTHONIOENCODING="latin-1")
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\xff\u0436: no errors" in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_completion_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    assert "_GOVERNOR_COMPLETE" in capsys.readouterr().out


def test_the_shell_completes_commands_without_importing_them() -> None:
    environment = {"_GOVERNOR_COMPLETE": "bash_complete", "COMP_WORDS": "governor de", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "governor.cli.main"], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.split() == ["plain,delete", "plain,describe"]


@pytest.mark.parametrize("content", [b"rg-secret\n", b"\xef\xbb\xbfrg-secret\r\n"])
def test_a_token_file_is_read_without_line_break_and_byte_order_mark(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    assert read_token(file).reveal() == "rg-secret"


@pytest.mark.parametrize("content", [b"", b"\n", b"two\nlines", b"\xff\xfe", "schlüssel".encode()])
def test_a_file_without_a_token_is_rejected_without_repeating_its_contents(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(GovernorError) as raised:
        read_token(file)
    assert str(file) in raised.value.message
    assert "lines" not in raised.value.message


def test_a_missing_token_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(GovernorError) as raised:
        read_token(tmp_path / "missing")
    assert raised.value.kind is Kind.UNAUTHENTICATED
    assert str(tmp_path / "missing") in raised.value.message


def test_a_usage_error_has_the_prefix_of_all_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["apply"]) == USAGE
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Usage: governor apply")
    assert lines[-1].startswith("error: Missing option")


def test_a_group_without_a_command_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["get"]) == USAGE
    shown = capsys.readouterr().err
    assert "runtimes" in shown
    assert "error:" not in shown
