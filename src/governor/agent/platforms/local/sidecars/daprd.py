"""daprd's program, command line, environment and log format. Starts no process."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from governor.agent.platforms.local.storage import Ports
from governor.agent.settings import SidecarSettings
from governor.errors import GovernorError, Kind
from governor.process.child.child import ChildExit
from governor.process.telemetry import logging

RESOURCES_FLAG: Final = "--resources-path"
_AGENT_PREFIX: Final = "GOVERNOR_"
_MEMORY_LIMIT: Final = "256MiB"
"""A daprd that has just started needs a quarter of it."""
OWNER_VARIABLE: Final = "GOVERNOR_SIDECAR_OF"
_PORT_IN_USE: Final = "address already in use"
_ERROR_LEVELS: Final = ("error", "fatal")
_WARNING_LEVELS: Final = ("warning",)
_LAST_LINES: Final = 3
_MAX_BYTES: Final = 256 * 1024

_log = logging.get_logger(__name__)


class Launch(msgspec.Struct, frozen=True):
    """Launch settings shared by all sidecars of an agent."""

    program: Path
    resources: Path
    namespace: str
    owner: Path
    """The agent's state directory; marks every process that the agent starts."""
    stop_with_agent: bool = False


def find_program(given: Path | None) -> Path:
    """Return the daprd to run: ``given``, else on the PATH, else in the directory of Dapr's installer."""
    if given is not None:
        return given
    for path in (None, str(Path.home() / ".dapr" / "bin")):
        found = shutil.which("daprd", path=path)
        if found:
            return Path(found)
    message = "daprd was found neither on the PATH nor in ~/.dapr/bin: install it (`dapr init --slim`) or pass --daprd"
    raise GovernorError(Kind.PRECONDITION, "daprd-missing", message)


def argv(launch: Launch, settings: SidecarSettings, ports: Ports, config: Path | None) -> list[str]:
    """Return the command line. The operator's flags override ours, except for the Configuration."""
    app = [f"--app-port={settings.app_port}"] if settings.app_port else []
    configuration = [f"--config={config}"] if config else []
    return [
        str(launch.program),
        "--mode=standalone",
        f"--app-id={settings.app_id}",
        *app,
        f"{RESOURCES_FLAG}={launch.resources}",
        f"--dapr-http-port={ports.http}",
        f"--dapr-grpc-port={ports.grpc}",
        f"--dapr-internal-grpc-port={ports.internal_grpc}",
        f"--dapr-public-port={ports.public}",
        f"--metrics-port={ports.metrics}",
        "--dapr-listen-addresses=127.0.0.1",
        "--dapr-internal-grpc-listen-address=127.0.0.1",
        "--dapr-public-listen-address=127.0.0.1",
        "--metrics-listen-address=127.0.0.1",
        "--enable-mtls=false",
        "--log-as-json",
        *settings.argv,
        *configuration,
    ]


def environment(launch: Launch) -> Mapping[str, str]:
    """Return the agent's environment without its own settings, plus a namespace and the owner's mark.

    Without a namespace, equal names in two namespaces would clash. A later agent finds orphans by the mark.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_AGENT_PREFIX)}
    return {**inherited, "NAMESPACE": launch.namespace, OWNER_VARIABLE: str(launch.owner)}


def throw_away_environment(launch: Launch) -> Mapping[str, str]:
    """Return the environment of a throw-away sidecar, which collects garbage only at a memory limit.

    Otherwise the collector runs several times before daprd is up, which takes a quarter of its start.
    """
    return {"GOMEMLIMIT": _MEMORY_LIMIT, **environment(launch), "GOGC": "off"}


class _Line(msgspec.Struct):
    level: str = ""
    msg: str = ""


def errors(log_file: Path, begin: int) -> tuple[str, ...]:
    """Return the last errors that daprd logged after an offset; none if the file cannot be read. Blocking."""
    return _messages(log_file, begin, _ERROR_LEVELS)


def warnings(log_file: Path, begin: int) -> tuple[str, ...]:
    """Return the last warnings that daprd logged after an offset; none if the file cannot be read. Blocking."""
    return _messages(log_file, begin, _WARNING_LEVELS)


def _messages(log_file: Path, begin: int, levels: Sequence[str]) -> tuple[str, ...]:
    try:
        with log_file.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(begin, size - _MAX_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError as error:
        # The log only explains a failure; daprd's counters show it without the log.
        _log.warning("cannot read the log of a sidecar", log=str(log_file), error=error.strerror)
        return ()
    return tuple(line.msg for line in map(_read, lines) if line.level in levels)


def describe_exit(exited: ChildExit) -> str:
    """Return how daprd exited, with its last error."""
    return f"daprd {exited.summary}: {last_error(exited.tail)}"


def has_external_cause(exited: ChildExit) -> bool:
    """Return whether nothing that daprd loaded can be the reason: it was killed, or its port was in use.

    The exit status of an adopted process is unknown, but a daprd that gives up logs an error.
    """
    has_error = any(_read(line).level in _ERROR_LEVELS for line in exited.tail)
    return bool(exited.signal) or _PORT_IN_USE in last_error(exited.tail) or (exited.code is None and not has_error)


def last_error(tail: Sequence[str]) -> str:
    """Return the last error in the tail of the log, or else its last lines."""
    lines = [_read(line) for line in tail]
    found = [line.msg for line in lines if line.level in _ERROR_LEVELS]
    return found[-1] if found else "; ".join(line.msg for line in lines[-_LAST_LINES:])


def _read(line: str) -> _Line:
    try:
        return msgspec.json.decode(line, type=_Line)
    except msgspec.MsgspecError:
        return _Line(msg=line)
