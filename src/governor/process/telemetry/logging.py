"""Structured logs on stderr: JSON lines, or text on a terminal, with secrets masked by their type.

Logs of libraries, which use the standard library's logging, are written in the same form. ``log_writer`` writes the
lines; the configuration of the process, including the writer, is kept by structlog and by the root logger's handler.
"""

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO, TypeAlias

import msgspec

from governor.process.telemetry.log_writer import (
    DirectWriter,
    Dropped,
    Priority,
    ThreadWriter,
    Writer,
    replace_stderr,
)
from governor.values.printing import printable
from governor.values.secret import MASK, Sealed, Secret

if "rich" in sys.modules:
    import structlog
else:
    # structlog imports rich if it is installed (5 MiB and 50 ms for every program) to print tracebacks with local
    # variables, which must not be logged. None makes the import fail as if rich were not installed.
    sys.modules["rich"] = None  # type: ignore[assignment]
    import structlog

    del sys.modules["rich"]

Level: TypeAlias = Literal["debug", "info", "warning", "error"]

_SCALARS: Final = frozenset({str, int, float, bool, type(None)})
"""Types of most values, which contain no secret."""
_FIRST_FIELDS: Final = dict.fromkeys(("time", "level", "logger", "event"))

_QUIET: Final = ("sqlalchemy", "alembic", "asyncio", "aiohttp.access", "uvicorn.access")
"""Libraries that log every statement or request at level info."""

_FLUSH_S: Final = 1.0
"""Time for the last lines of a process; a stderr that is not read delays its exit by no more."""


_run: Final = ContextVar("run", default="")


@contextmanager
def correlated(run: str) -> Iterator[None]:
    """Add a correlation id, as the field ``run``, to all log lines of the block and of the tasks that it starts."""
    token = _run.set(run)
    try:
        yield
    finally:
        _run.reset(token)


def correlation_id() -> str:
    """Return the correlation id of the current block, or ``""``."""
    return _run.get()


def configure(program: str, *, level: Level = "info", stream: TextIO | None = None) -> None:
    """Write all logs of this process to ``stream``, by default stderr. Call it once, before components start.

    By default, ``sys.stderr`` is replaced too: what is printed to it is written through the same buffer.
    """
    to = stream or sys.stderr
    describe, rendering = _describe(program), _rendering(in_json=not to.isatty())
    writer = _writer(to, [describe, *rendering])
    if stream is None and isinstance(writer, ThreadWriter):
        replace_stderr(writer)
    structlog.configure(
        processors=[describe, *rendering],
        logger_factory=lambda name, is_audit=False: _Lines(writer, name, is_audit=is_audit),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=False,
    )
    handler = _Handler(writer)
    handler.setFormatter(_formatter(describe, rendering))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel("DEBUG" if level == "debug" else "WARNING")
    logging.captureWarnings(capture=True)


def get_logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """Return a logger for a module, usable before ``configure``: ``log.info("event", field=value)``."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(name)
    return logger


def get_audit_logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """Return a logger whose lines are dropped last if stderr is not read."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(name, True)
    return logger


def flush() -> None:
    """Wait briefly until all lines are written, before an exit that skips the handlers of a normal exit."""
    for handler in logging.getLogger().handlers:
        handler.flush()


def dropped(priority: Priority) -> int:
    """Return how many lines of a priority were dropped so far."""
    handlers = logging.getLogger().handlers
    return sum(each.writer.dropped[priority] for each in handlers if isinstance(each, _Handler))


class _Lines:
    """Writes the lines of one logger; the standard library's logging would take twice the time."""

    __slots__ = ("_error", "_other", "_writer", "name")

    def __init__(self, writer: Writer, name: str, *, is_audit: bool) -> None:
        self._writer = writer
        self.name = name
        self._other, self._error = (Priority.AUDIT, Priority.AUDIT) if is_audit else (Priority.OTHER, Priority.ERROR)

    def _write(self, line: str) -> None:
        self._writer.put(line, self._other)

    def _write_error(self, line: str) -> None:
        self._writer.put(line, self._error)

    debug = info = warning = _write
    error = critical = _write_error


class _Handler(logging.Handler):
    """Writes log records of libraries. The standard library flushes and closes it when the process exits."""

    def __init__(self, writer: Writer) -> None:
        super().__init__()
        self.writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            priority = Priority.ERROR if record.levelno >= logging.ERROR else Priority.OTHER
            self.writer.put(self.format(record), priority)
        except Exception:  # noqa: BLE001 - a failure to log must not fail the caller
            self.handleError(record)

    def flush(self) -> None:
        self.writer.flush(_FLUSH_S)

    def close(self) -> None:
        self.writer.close()
        super().close()


def _writer(stream: TextIO, processors: Sequence[structlog.typing.Processor]) -> Writer:
    """Return a ThreadWriter, or a DirectWriter for a stream without a file descriptor, as in tests."""
    try:
        stream.fileno()
    except OSError:
        return DirectWriter(stream)
    return ThreadWriter(stream, lambda counts: _notice(counts, processors))


def _notice(counts: Dropped, processors: Sequence[structlog.typing.Processor]) -> str:
    """Return the line that replaces dropped lines."""
    event = {"event": "log lines dropped, stderr was not read in time", "lines": sum(counts.values())}
    line: Any = {**event, "audit_lines": counts.get(Priority.AUDIT, 0)}
    for each in processors:
        line = each(logging.getLogger(__name__), "warning", line)
    return str(line)


def _mask(value: object) -> object:
    """Return ``value`` with every Secret in it, at any depth, replaced by the mask."""
    kind = type(value)
    # The patterns below take longer than everything else.
    if kind in _SCALARS:
        return value
    if kind is dict:
        return {
            key if type(key) is str else _mask(key): each if type(each) in _SCALARS else _mask(each)
            for key, each in value.items()  # type: ignore[attr-defined]
        }
    if kind is list:
        return [_mask(each) for each in value]  # type: ignore[attr-defined]
    match value:
        case Secret() | Sealed():
            return MASK
        case msgspec.Struct():
            return {name: _mask(getattr(value, name)) for name in value.__struct_fields__}
        case Mapping():
            return {_mask(key): _mask(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_mask(each) for each in value]
        case _:
            return value


def _describe(program: str) -> structlog.typing.Processor:
    """Return the processor that adds the standard fields in order; one step, because several take twice the time."""

    def process(logger: Any, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        record = event.get("_record")
        line = {**_FIRST_FIELDS, **event, "program": program}
        line["time"] = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        line["level"] = level
        line["logger"] = logger.name if record is None else record.name
        if run := _run.get():
            line["run"] = run
        for name, value in event.items():
            # exc_info is rendered by a later step, without local variables.
            if type(value) not in _SCALARS and not name.startswith("_") and name != "exc_info":
                line[name] = _mask(value)
        return line

    return process


def _rendering(*, in_json: bool) -> list[structlog.typing.Processor]:
    if in_json:
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_json)]
    in_colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    text = structlog.dev.ConsoleRenderer(
        colors=in_colour, timestamp_key="time", exception_formatter=structlog.dev.plain_traceback
    )
    return [_escape_unprintable, text]


def _escape_unprintable(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape control characters in untrusted text, such as pod names, before it reaches a terminal."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = "\n".join(map(printable, value.split("\n")))
    return event


def _formatter(
    describe: structlog.typing.Processor, rendering: Sequence[structlog.typing.Processor]
) -> structlog.stdlib.ProcessorFormatter:
    """Return the formatter for log records of libraries."""
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[describe],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
    )


def _json(line: Mapping[str, Any], **_options: object) -> str:
    try:
        return msgspec.json.encode(line, enc_hook=repr).decode()
    except UnicodeEncodeError:
        # A file name may contain lone surrogates, which UTF-8 cannot encode.
        return json.dumps(line, default=repr)
