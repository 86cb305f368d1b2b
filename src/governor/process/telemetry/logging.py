"""Structured logs on stderr: JSON lines, or text on a terminal, with secrets masked by their type.

Logs of libraries, which use the standard library's logging, are written in the same form.
"""

import json
import logging
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO, TypeAlias

import msgspec

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


def configure(program: str, *, level: Level = "info", stream: TextIO | None = None) -> None:
    """Write all logs of this process to ``stream``, by default stderr. Call it once, before components start."""
    to = stream or sys.stderr
    describe, rendering = _describe(program), _rendering(in_json=not to.isatty())
    structlog.configure(
        processors=[describe, *rendering],
        logger_factory=lambda name: _Lines(to, name),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(to)
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


class _Lines:
    """Writes the lines of one logger directly to the stream; the standard library would take twice the time."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream = stream
        self.name = name

    def _write(self, line: str) -> None:
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            return  # A failure to log must not fail the caller.

    debug = info = warning = error = critical = _write


def _mask(value: object) -> object:
    """Return ``value`` with every Secret in it, at any depth, replaced by the mask."""
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
        for name, value in event.items():
            # exc_info is rendered by a later step, without local variables.
            if type(value) not in _SCALARS and not name.startswith("_") and name != "exc_info":
                line[name] = _mask(value)
        return line

    return process


def _rendering(*, in_json: bool) -> list[structlog.typing.Processor]:
    if in_json:
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_json)]
    return [
        _escape_unprintable,
        structlog.dev.ConsoleRenderer(timestamp_key="time", exception_formatter=structlog.dev.plain_traceback),
    ]


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
