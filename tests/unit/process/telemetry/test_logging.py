"""Log lines: their fields, and the masking of secrets."""

import io
import json
import logging as stdlib_logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import structlog

from governor.process.telemetry import logging
from governor.values.secret import Sealed, Secret

PASSWORD = "hunter2-hunter2"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(text)


class Account(msgspec.Struct, frozen=True):
    user: str
    password: Secret


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = stdlib_logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    stdlib_logging.captureWarnings(capture=False)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_json_with_time_level_logger_event_program_and_fields() -> None:
    stream = io.StringIO()
    logging.configure("server", stream=stream)
    logging.get_logger("governor.test").info("it happened", count=3)
    (line,) = lines(stream)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "governor.test",
        "event": "it happened",
        "program": "server",
        "count": 3,
    }


@pytest.mark.parametrize("make_stream", [io.StringIO, Terminal], ids=["json", "text"])
def test_a_secret_is_masked_at_any_depth(make_stream: type[io.StringIO]) -> None:
    stream = make_stream()
    logging.configure("server", stream=stream)
    secret, account = Secret(PASSWORD), Account("admin", Secret(PASSWORD))
    log, interpolated = logging.get_logger("x"), f"with {secret}"
    log.warning(
        interpolated,
        plain=secret,
        table={"deep": [{"deeper": (secret,)}]},
        struct=account,
        odd={secret},
        sealed=Sealed(box=PASSWORD, mac="m"),
    )
    stdlib_logging.getLogger("uvicorn.error").warning("login %s with %s", "admin", secret)
    stdlib_logging.getLogger("aiohttp.server").warning("account %(a)s", {"a": account})
    log.error("rejected", exc_info=ValueError(f"not accepted: {secret}"))
    text = stream.getvalue()
    assert PASSWORD not in text
    assert text.count("***") >= 8


@pytest.mark.parametrize("make_stream", [io.StringIO, Terminal], ids=["json", "text"])
def test_an_exception_shows_its_trace_and_no_local_variables(make_stream: type[io.StringIO]) -> None:
    stream = make_stream()
    logging.configure("server", stream=stream)
    local_variable = "x" * 8 + "-local"
    table: dict[str, str] = {}
    try:
        table["absent"]
    except KeyError:
        logging.get_logger("x").exception("lookup failed")
    assert "KeyError: 'absent'" in stream.getvalue()
    assert "Traceback" in stream.getvalue()
    assert local_variable not in stream.getvalue()


def test_a_terminal_gets_text_not_json() -> None:
    stream = Terminal()
    logging.configure("server", stream=stream)
    logging.get_logger("x").info("it happened", count=3)
    assert "it happened" in stream.getvalue()
    assert not stream.getvalue().lstrip().startswith("{")


@pytest.mark.parametrize(
    ("variable", "value", "in_colour"),
    [("NO_COLOR", "1", False), ("NO_COLOR", "", True), ("TERM", "dumb", False), ("TERM", "xterm", True)],
)
def test_text_is_coloured_unless_the_user_or_the_terminal_wants_none(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, in_colour: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv(variable, value)
    stream = Terminal()
    logging.configure("server", stream=stream)
    logging.get_logger("x").info("it happened")
    assert ("\x1b[" in stream.getvalue()) is in_colour


def test_control_characters_do_not_reach_a_terminal() -> None:
    stream = Terminal()
    logging.configure("server", stream=stream)
    logging.get_logger("x").info("it\x1b[2J happened", pod="shop/\x1b[31mweb", other="a b\x9b")
    text = stream.getvalue()
    assert "\x1b[2J" not in text
    assert "\x1b[31mweb" not in text
    assert "\x9b" not in text
    assert r"shop/\x1b[31mweb" in text


def test_a_failure_to_write_a_log_does_not_raise() -> None:
    logging.configure("server", stream=Broken())
    logging.get_logger("x").error("it happened")


def test_logs_of_libraries_have_the_same_form() -> None:
    stream = io.StringIO()
    logging.configure("agent", stream=stream)
    stdlib_logging.getLogger("alembic.runtime.migration").warning("upgrade to %s", "0001")
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["logger"], line["program"]) == (
        "upgrade to 0001",
        "warning",
        "alembic.runtime.migration",
        "agent",
    )


@pytest.mark.parametrize(
    ("level", "events"),
    [("debug", ["d", "i", "w", "e"]), ("info", ["i", "w", "e"]), ("warning", ["w", "e"]), ("error", ["e"])],
)
def test_the_level_decides_what_is_written(level: logging.Level, events: list[str]) -> None:
    stream = io.StringIO()
    logging.configure("server", level=level, stream=stream)
    log = logging.get_logger("x")
    log.debug("d")
    log.info("i")
    log.warning("w")
    log.error("e")
    assert [line["event"] for line in lines(stream)] == events


def test_verbose_libraries_are_quiet_unless_debugging() -> None:
    quiet, loud = io.StringIO(), io.StringIO()
    logging.configure("server", stream=quiet)
    stdlib_logging.getLogger("sqlalchemy.engine").info("SELECT 1")
    logging.configure("server", level="debug", stream=loud)
    stdlib_logging.getLogger("sqlalchemy.engine").info("SELECT 1")
    assert quiet.getvalue() == ""
    assert [line["event"] for line in lines(loud)] == ["SELECT 1"]


def test_a_logger_created_before_configure_follows_it() -> None:
    early, stream = logging.get_logger("early"), io.StringIO()
    logging.configure("server", stream=stream)
    early.info("it happened")
    assert [line["logger"] for line in lines(stream)] == ["early"]


def test_a_value_that_json_cannot_encode_is_written_as_its_repr() -> None:
    stream = io.StringIO()
    logging.configure("server", stream=stream)
    logging.get_logger("x").info("it happened", value=object, number=float("nan"), raw=b"\xff")
    (line,) = lines(stream)
    assert line["value"] == "<class 'object'>"


def test_lone_surrogates_are_written_escaped() -> None:
    stream = io.StringIO()
    logging.configure("test", stream=stream)

    logging.get_logger("x").info("found", names=["\udcff.json"])

    assert stream.getvalue().isascii()
    assert json.loads(stream.getvalue())["names"] == ["\udcff.json"]


def test_logging_does_not_import_rich_and_does_not_block_it() -> None:
    module = "governor.process.telemetry.logging"
    program = f"import sys, {module}; print('rich' in sys.modules); import rich.console; print('ok')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "ok"]
