"""Blocking client of the control socket, for the commands."""

import http
import http.client
import socket
import urllib.parse
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from governor.errors import GovernorError, Kind
from governor.runtimeproxy.ops.control import (
    CALLS,
    PODS,
    UPGRADE,
    CallFilter,
    ErrorBody,
    PodExplanation,
    PodList,
    TapLine,
    Upgraded,
)

T = TypeVar("T")

_TIMEOUT_S: Final = 60.0


class ControlClient:
    """Client of one proxy's control socket."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pods(self) -> PodList:
        """Return all known pods."""
        return self._get(PODS, PodList)

    def pod(self, namespace: str, name: str) -> PodExplanation:
        """Return one pod; raise NOT_FOUND if it is unknown."""
        quoted = (urllib.parse.quote(each, safe="") for each in (namespace, name))
        return self._get("/".join((PODS, *quoted)), PodExplanation)

    def calls(self, call_filter: CallFilter) -> Iterator[TapLine]:
        """Yield calls as they end; raise UNAVAILABLE when the proxy closes the stream."""
        query = urllib.parse.urlencode(msgspec.to_builtins(call_filter), errors="replace")
        with self._responding(f"{CALLS}?{query}") as response:
            try:
                while line := response.readline():
                    yield msgspec.json.decode(line, type=TapLine)
            except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
                raise _closed() from error
        raise _closed()

    def upgrade(self) -> Upgraded:
        """Replace the proxy by the installed version, and return when the new one serves."""
        return self._get(UPGRADE, Upgraded, method="POST")

    def _get(self, target: str, kind: type[T], method: str = "GET") -> T:
        with self._responding(target, method) as response:
            try:
                return msgspec.json.decode(response.read(), type=kind)
            except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
                raise self._not_a_proxy(error) from error

    @contextmanager
    def _responding(self, target: str, method: str = "GET") -> Iterator[http.client.HTTPResponse]:
        """Send a request on a connection of its own, which is closed at the end, and yield the response."""
        with closing(_UnixConnection(self._path)) as connection:
            try:
                connection.request(method, target)
                response = connection.getresponse()
                if response.status != http.HTTPStatus.OK:
                    raise self._error(response.read())
            except OSError as error:
                raise self._unreachable(error) from error
            except http.client.HTTPException as error:
                raise self._not_a_proxy(error) from error
            # Calls may be far apart.
            connection.sock.settimeout(None)
            with response:
                yield response

    def _error(self, body: bytes) -> GovernorError:
        try:
            return msgspec.json.decode(body, type=ErrorBody).error()
        except msgspec.DecodeError as error:
            return self._not_a_proxy(error)

    def _unreachable(self, error: OSError) -> GovernorError:
        if isinstance(error, PermissionError):
            message = f"{self._path} is accessible only to the runtime proxy's user; run this command as that user"
            return GovernorError(Kind.PRECONDITION, "control-socket", message)
        message = (
            f"no runtime proxy responds on {self._path}: {error.strerror or error}; start it, or pass the flags "
            "(before the command), variables or file with which it was started"
        )
        return GovernorError(Kind.UNAVAILABLE, "control-socket", message)

    def _not_a_proxy(self, error: Exception) -> GovernorError:
        message = f"{self._path} is not the control socket of a runtime proxy of this version"
        if isinstance(error, msgspec.DecodeError):
            message += f": {error}"
        return GovernorError(Kind.INTERNAL, "control-answer", message)


def _closed() -> GovernorError:
    return GovernorError(Kind.UNAVAILABLE, "proxy-lost", "the runtime proxy closed the connection")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("runtime-proxy", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
