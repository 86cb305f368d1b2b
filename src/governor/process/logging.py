"""Structured logs on stderr: JSON lines for machines, readable text on a terminal, secrets masked by their type.

The libraries' own logs (standard library) take the same road. Where lines go after stderr is the platform's business.
"""

import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Final, Literal, TextIO, TypeAlias

import msgspec

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

_QUIET: Final = ("sqlalchemy", "alembic", "asyncio", "aiohttp.access", "uvicorn.access")
"""Libraries that report each statement or request as information."""


def configure(program: str, *, level: Level = "info", stream: TextIO | None = None) -> None:
    """Send all logs of this process to ``stream``, stderr by default; call once, before the first component starts."""
    stream = stream or sys.stderr
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_described(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_formatter(in_json=not stream.isatty()))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel("DEBUG" if level == "debug" else "WARNING")
    logging.captureWarnings(capture=True)
    structlog.contextvars.clear_contextvars()
    bind(program=program)


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger for one module, usable before ``configure``: ``log.info("event in words", field=value)``."""
    return structlog.stdlib.get_logger(name)


def bind(**fields: object) -> None:
    """Add fields to every line that this task and the tasks it starts will log."""
    structlog.contextvars.bind_contextvars(**fields)


def masked(value: object) -> object:
    """``value`` with every Secret in it, however deep, replaced by the mask."""
    match value:
        # First, because almost all values are of these.
        case str() | int() | None:
            return value
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


def _described() -> list[structlog.typing.Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        _mask_fields,
    ]


def _mask_fields(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name, value in event.items():
        # exc_info holds the exception itself, which a later processor turns into text without local variables.
        if not name.startswith("_") and name != "exc_info":
            event[name] = masked(value)
    return event


def _formatter(*, in_json: bool) -> structlog.stdlib.ProcessorFormatter:
    render: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_json)]
        if in_json
        else [structlog.dev.ConsoleRenderer(timestamp_key="time", exception_formatter=structlog.dev.plain_traceback)]
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_described(),
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
    )


def _json(event: Mapping[str, Any], **_options: object) -> str:
    return msgspec.json.encode(_in_order(event), enc_hook=repr).decode()


def _in_order(event: Mapping[str, Any]) -> dict[str, Any]:
    first = {name: event[name] for name in ("time", "level", "logger", "event") if name in event}
    return first | {str(name): value for name, value in event.items()}
