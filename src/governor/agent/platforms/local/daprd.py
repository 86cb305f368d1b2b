"""How daprd is started here: program, command line, environment; and what its log says. No processes."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from governor.agent.settings import SidecarSettings
from governor.agent.storage import Ports
from governor.errors import GovernorError, Kind
from governor.process.child.child import ChildExit

RESOURCES_FLAG: Final = "--resources-path"
_OWN_VARIABLES: Final = "GOVERNOR_"
OWNER_VARIABLE: Final = "GOVERNOR_SIDECAR_OF"
_PORT_TAKEN: Final = "address already in use"
_ERROR_LEVELS: Final = ("error", "fatal")
_WARNING_LEVELS: Final = ("warning",)
_LAST_LINES: Final = 3
_MOST_BYTES: Final = 256 * 1024


class Launch(msgspec.Struct, frozen=True):
    """What all sidecars of an agent have in common."""

    program: Path
    resources: Path
    namespace: str
    owner: Path
    """The agent's state directory; every process that it starts is marked with it."""
    stop_with_agent: bool = False


def find_program(given: Path | None) -> Path:
    """The daprd to run: the given one, else on the PATH, else where Dapr's own installer puts it."""
    if given is not None:
        return given
    for place in (None, str(Path.home() / ".dapr" / "bin")):
        found = shutil.which("daprd", path=place)
        if found:
            return Path(found)
    message = "daprd was not found on the PATH nor in ~/.dapr/bin: install it (`dapr init --slim`) or give --daprd"
    raise GovernorError(Kind.PRECONDITION, "daprd-missing", message)


def argv(launch: Launch, settings: SidecarSettings, ports: Ports, config: Path | None) -> list[str]:
    """The command line. The operator's own flags may override ours, except that our Configuration comes last."""
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
    """Ours without what is the agent's own; marked, and always with a namespace.

    Without a namespace equal names in two would clash. By the mark a later agent finds what a killed one has left.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_VARIABLES)}
    return {**inherited, "NAMESPACE": launch.namespace, OWNER_VARIABLE: str(launch.owner)}


class _Line(msgspec.Struct):
    level: str = ""
    msg: str = ""


def errors(log_file: Path, begin: int) -> tuple[str, ...]:
    """The last errors that daprd logged behind a place of its log. Blocking."""
    return _messages(log_file, begin, _ERROR_LEVELS)


def warnings(log_file: Path, begin: int) -> tuple[str, ...]:
    """The last warnings that daprd logged behind a place of its log. Blocking."""
    return _messages(log_file, begin, _WARNING_LEVELS)


def _messages(log_file: Path, begin: int, levels: Sequence[str]) -> tuple[str, ...]:
    with log_file.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(begin, size - _MOST_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return tuple(line.msg for line in map(_read, lines) if line.level in levels)


def describe_exit(ended: ChildExit) -> str:
    """How daprd ended, with its last words."""
    return f"daprd {ended.summary}: {last_error(ended.tail)}"


def has_external_cause(ended: ChildExit) -> bool:
    """Whether nothing that daprd loaded can be to blame: it was killed, or another program had its port.

    How the process of an earlier agent ended is not known, but one that gave up itself has said so.
    """
    complained = any(_read(line).level in _ERROR_LEVELS for line in ended.tail)
    return bool(ended.signal) or _PORT_TAKEN in last_error(ended.tail) or (ended.code is None and not complained)


def last_error(tail: Sequence[str]) -> str:
    """Why daprd is unhappy, from the end of its log: its last error, or else what it said last."""
    lines = [_read(line) for line in tail]
    errors = [line.msg for line in lines if line.level in _ERROR_LEVELS]
    return errors[-1] if errors else "; ".join(line.msg for line in lines[-_LAST_LINES:])


def _read(line: str) -> _Line:
    try:
        return msgspec.json.decode(line, type=_Line)
    except msgspec.MsgspecError:
        return _Line(msg=line)
