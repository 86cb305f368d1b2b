"""Asks a running proxy by its control socket; for commands, so it blocks."""

import http
import http.client
import socket
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from governor.errors import GovernorError, Kind
from governor.runtimeproxy.ops.control import CALLS, PODS, CallFilter, Failure, Line, PodExplanation, PodList

T = TypeVar("T")

_ANSWER_S: Final = 60.0


class ControlClient:
    """A proxy at its control socket."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pods(self) -> PodList:
        """All pods that are known."""
        return self._get(PODS, PodList)

    def pod(self, namespace: str, name: str) -> PodExplanation:
        """One pod; NOT_FOUND if nobody knows it."""
        quoted = (urllib.parse.quote(each, safe="") for each in (namespace, name))
        return self._get("/".join((PODS, *quoted)), PodExplanation)

    def calls(self, wanted: CallFilter) -> Iterator[Line]:
        """The calls from now on; UNAVAILABLE when the proxy ends, for it never ends them otherwise."""
        query = urllib.parse.urlencode(msgspec.to_builtins(wanted), errors="replace")
        answer = self._answer(f"{CALLS}?{query}")
        try:
            while line := answer.readline():
                yield msgspec.json.decode(line, type=Line)
        except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
            raise _gone() from error
        finally:
            answer.close()
        raise _gone()

    def _get(self, target: str, kind: type[T]) -> T:
        answer = self._answer(target)
        try:
            return msgspec.json.decode(answer.read(), type=kind)
        except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
            raise self._nonsense(error) from error

    def _answer(self, target: str) -> http.client.HTTPResponse:
        connection = _UnixConnection(self._path)
        try:
            connection.request("GET", target)
            answer = connection.getresponse()
            if answer.status != http.HTTPStatus.OK:
                raise self._failure(answer.read())
        except OSError as error:
            raise self._unreachable(error) from error
        except http.client.HTTPException as error:
            raise self._nonsense(error) from error
        # Calls may be far between.
        connection.sock.settimeout(None)
        return answer

    def _failure(self, body: bytes) -> GovernorError:
        try:
            return msgspec.json.decode(body, type=Failure).error()
        except msgspec.DecodeError as error:
            return self._nonsense(error)

    def _unreachable(self, error: OSError) -> GovernorError:
        if isinstance(error, PermissionError):
            message = f"{self._path} may be used only by the user of the runtime proxy; run this as that user"
            return GovernorError(Kind.PRECONDITION, "control-socket", message)
        message = (
            f"no runtime proxy answers on {self._path}: {error.strerror or error}; start it, or give the flags (before "
            "the command), variables or file with which it was started"
        )
        return GovernorError(Kind.UNAVAILABLE, "control-socket", message)

    def _nonsense(self, error: Exception) -> GovernorError:
        message = f"{self._path} is not the control socket of a runtime proxy of this version"
        if isinstance(error, msgspec.DecodeError):
            message += f": {error}"
        return GovernorError(Kind.INTERNAL, "control-answer", message)


def _gone() -> GovernorError:
    return GovernorError(Kind.UNAVAILABLE, "proxy-lost", "the runtime proxy has gone")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("runtime-proxy", timeout=_ANSWER_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
