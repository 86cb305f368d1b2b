"""The errors in the log of a sidecar, which Kubernetes keeps for the running container and the one before it."""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from governor.agent.platforms.kubernetes.workloads.workload import Pod
from governor.errors import GovernorError
from governor.kube.client import Client, Request
from governor.process.telemetry import logging

_CONTAINER: Final = "daprd"
_LINES: Final = "100"
_MAX_ERRORS: Final = 5
_MAX_CHARS: Final = 2000
"""Of one error: a report must stay small whatever a sidecar logs."""
_LEVELS: Final = frozenset({"error", "fatal"})
_TEXT: Final = re.compile(r'level=(?P<level>\w+)\b.*?msg=(?P<message>"(?:[^"\\]|\\.)*"|\S+)')

_log = logging.get_logger(__name__)


class _Line(msgspec.Struct):
    level: str = ""
    msg: str = ""


async def read_errors(client: Client, pod: Pod, *, previous: bool) -> tuple[str, ...]:
    """Return the last errors of a sidecar, of the container before the present one if ``previous``; none if unknown."""
    return errors_in(await _read(client, pod, previous=previous) or "")


async def read_exit_errors(client: Client, pod: Pod) -> tuple[str, ...]:
    """Return the last errors of a sidecar that has exited; none if unknown."""
    is_running = pod.sidecar is not None and pod.sidecar.started is not None
    log = await _read(client, pod, previous=is_running)
    found = errors_in(log or "")
    if found or log is None or is_running:
        return found
    # The container may have been started again since its pod was observed.
    return await read_errors(client, pod, previous=True)


async def _read(client: Client, pod: Pod, *, previous: bool) -> str | None:
    """Return the end of a sidecar's log, or None if it cannot be read."""
    # A limit in bytes would cut the end, where the fatal line is.
    query = {"container": _CONTAINER, "tailLines": _LINES}
    path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/log"
    try:
        text = await client.send(Request("GET", path, {**query, "previous": "true"} if previous else query))
    except GovernorError as error:
        # A log that is gone, or that the agent may not read, must not hide that the sidecar failed.
        _log.info("cannot read the log of a sidecar", pod=pod.name, error=str(error))
        return None
    return text.decode(errors="replace")


def errors_in(log: str) -> tuple[str, ...]:
    """Return the messages of the last errors in a log of daprd, as text or JSON."""
    return tuple(_errors(log))[-_MAX_ERRORS:]


def _errors(log: str) -> Iterator[str]:
    for line in log.splitlines():
        level, message = _parsed(line)
        if level in _LEVELS and message:
            yield message if len(message) <= _MAX_CHARS else f"{message[: _MAX_CHARS - 3]}..."


def _parsed(line: str) -> tuple[str, str]:
    if line.startswith("{"):
        try:
            found = msgspec.json.decode(line, type=_Line)
        except msgspec.MsgspecError:
            return "", ""
        return found.level, found.msg
    match = _TEXT.search(line)
    return (match["level"], _unquoted(match["message"])) if match else ("", "")


def _unquoted(text: str) -> str:
    if not text.startswith('"'):
        return text
    try:
        return msgspec.json.decode(text, type=str)
    except msgspec.MsgspecError:
        return text[1:-1]
