"""Structured logs on stderr: JSON lines for machines, readable text on a terminal, secrets masked by their type.

The libraries' own logs (standard library) take the same road. Where lines go after stderr is the platform's business.
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
    # structlog loads rich if it can, 5 MiB and 50 ms for every program, to print traces with local variables,
    # which is just what a log must not show. None makes the import fail as if rich were not installed.
    sys.modules["rich"] = None  # type: ignore[assignment]
    import structlog

    del sys.modules["rich"]

Level: TypeAlias = Literal["debug", "info", "warning", "error"]

_PLAIN: Final = frozenset({str, int, float, bool, type(None)})
"""Almost all values, and there is no secret in them."""
_BEGINNING: Final = dict.fromkeys(("time", "level", "logger", "event"))

_QUIET: Final = ("sqlalchemy", "alembic", "asyncio", "aiohttp.access", "uvicorn.access")
"""Libraries that report each statement or request as information."""


def configure(program: str, *, level: Level = "info", stream: TextIO | None = None) -> None:
    """Send all logs of this process to ``stream``, stderr by default; call once, before the first component starts."""
    to = stream or sys.stderr
    description, rendering = _describing(program), _rendering(in_json=not to.isatty())
    structlog.configure(
        processors=[description, *rendering],
        logger_factory=lambda name: _Lines(to, name),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(to)
    handler.setFormatter(_formatter(description, rendering))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel("DEBUG" if level == "debug" else "WARNING")
    logging.captureWarnings(capture=True)


def get_logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """A logger for one module, usable before ``configure``: ``log.info("event in words", field=value)``."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(name)
    return logger


class _Lines:
    """Where the lines of one logger go: straight to the stream, as the standard library's road takes twice the time."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream = stream
        self.name = name

    def _write(self, line: str) -> None:
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            return  # A log that cannot be written is no reason for the work to fail.

    debug = info = warning = error = critical = _write


def masked(value: object) -> object:
    """``value`` with every Secret in it, however deep, replaced by the mask."""
    match value:
        case Secret() | Sealed():
            return MASK
        case msgspec.Struct():
            return {name: masked(getattr(value, name)) for name in value.__struct_fields__}
        case Mapping():
            return {masked(key): masked(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [masked(each) for each in value]
        case _:
            return value


def _describing(program: str) -> structlog.typing.Processor:
    """What every line says, in the order in which it is read. One step: several take twice the time."""

    def describe(logger: Any, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        record = event.get("_record")
        line = {**_BEGINNING, **event, "program": program}
        line["time"] = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        line["level"] = level
        line["logger"] = logger.name if record is None else record.name
        for name, value in event.items():
            # exc_info holds the exception itself, which a later step turns into text without local variables.
            if type(value) not in _PLAIN and not name.startswith("_") and name != "exc_info":
                line[name] = masked(value)
        return line

    return describe


def _rendering(*, in_json: bool) -> list[structlog.typing.Processor]:
    if in_json:
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_json)]
    return [
        _make_visible,
        structlog.dev.ConsoleRenderer(timestamp_key="time", exception_formatter=structlog.dev.plain_traceback),
    ]


def _make_visible(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Names of pods, and whatever else comes from elsewhere, must not do anything to the terminal."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = "\n".join(map(printable, value.split("\n")))
    return event


def _formatter(
    description: structlog.typing.Processor, rendering: Sequence[structlog.typing.Processor]
) -> structlog.stdlib.ProcessorFormatter:
    """The libraries' lines become the same as ours."""
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[description],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
    )


def _json(line: Mapping[str, Any], **_options: object) -> str:
    try:
        return msgspec.json.encode(line, enc_hook=repr).decode()
    except UnicodeEncodeError:
        # A text that is no UTF-8, as a file's name may be, must not end who only wants to tell of it.
        return json.dumps(line, default=repr)
