"""``lint``: what is wrong or doubtful in the plugins' files, found without a running proxy.

The files are read by the proxy's own code. Beyond what that reports: whether somebody answers at each plugin's socket,
who else could write the files, and what several plugins mean together.
"""

import itertools
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from governor.errors import Detail
from governor.runtimeproxy.grpc.deadlines import reserve_s
from governor.runtimeproxy.hooks.calls import CALLS_OF_HOOKS
from governor.runtimeproxy.hooks.dispatch import ANSWER_RESERVE_S, RUNTIME_RESERVE_S
from governor.runtimeproxy.http2 import frames
from governor.runtimeproxy.ops.control import HookExplanation, PluginTurn
from governor.runtimeproxy.ops.explain import wanted
from governor.runtimeproxy.plugins.directory import contents_of, shown, stamps_in
from governor.runtimeproxy.plugins.registration import Registration
from governor.runtimeproxy.plugins.registry import Problem, Registrations, reload
from governor.wire.hooks.points import Hook

_ANSWER_S: Final = 2.0


class LintReport(msgspec.Struct, frozen=True):
    """All problems, errors first, and who is asked by which hook."""

    directory: str
    problems: tuple[Problem, ...]
    hooks: tuple[HookExplanation, ...]

    @property
    def errors(self) -> int:
        """How many problems are errors."""
        return sum(each.is_error for each in self.problems)

    @property
    def warnings(self) -> int:
        """How many problems are not."""
        return len(self.problems) - self.errors


def examine(directory: Path, plugin_timeout_s: float, request_timeout_s: float) -> LintReport:
    """Read the files, look at sockets and permissions, and judge; ``request_timeout_s`` is kubelet's."""
    try:
        registrations = reload(Registrations(), contents_of(directory, stamps_in(directory)))
    except OSError as error:
        wrong = Problem(Detail(f"cannot be read: {error.strerror or error}", file=shown(directory)), is_error=True)
        return LintReport(shown(directory), (wrong,), ())
    found = [
        *registrations.problems,
        *_of_directory(directory),
        *(each for name, own in registrations.by_file.items() for each in _of_plugin(directory, name, own)),
        *shared_orders(registrations),
        *long_waits(registrations, plugin_timeout_s, request_timeout_s),
    ]
    problems = sorted(found, key=lambda each: (not each.is_error, each.detail.file, each.detail.path))
    hooks = tuple(_asked(hook, registrations, plugin_timeout_s) for hook in Hook)
    return LintReport(shown(directory), tuple(problems), hooks)


def shared_orders(registrations: Registrations) -> Iterator[Problem]:
    """Plugins whose turn depends only on the names of their files."""
    met: dict[str, list[tuple[str, str]]] = {}
    for hook in Hook:
        for first, second in itertools.combinations(registrations.of(hook), 2):
            if first.order == second.order and not _disjoint(first, second):
                met.setdefault(second.name, []).append((f"{first.name}.json", str(hook)))
    for name, found in met.items():
        # Each of them once, in the order in which they were met.
        others, hooks = (", ".join(dict.fromkeys(each)) for each in zip(*found, strict=True))
        reason = f"is that of {others} too, so they are asked by their files' names at {hooks}"
        yield _warning(f"{name}.json", "order", reason)


def _disjoint(first: Registration, second: Registration) -> bool:
    """Whether no pod can be of both, as far as that is plain."""
    return any(second.match_labels.get(key, value) != value for key, value in first.match_labels.items())


def long_waits(registrations: Registrations, plugin_timeout_s: float, request_timeout_s: float) -> Iterator[Problem]:
    """Hooks whose plugins together may take more time than kubelet gives a call."""
    for hook in Hook:
        plugins = registrations.of(hook)
        total_s = sum(each.timeout_s or plugin_timeout_s for each in plugins)
        left_s = request_timeout_s - reserve_s(
            request_timeout_s, ANSWER_RESERVE_S if hook.is_post else RUNTIME_RESERVE_S
        )
        if total_s > left_s:
            names = ", ".join(f"{each.name}.json" for each in plugins)
            reason = (
                f"together have {total_s:g} s for {hook}; of kubelet's {request_timeout_s:g} s only {left_s:g} s are "
                "theirs, so each gets a part"
            )
            yield _warning(names, "timeout", reason)


def _of_directory(directory: Path) -> Iterator[Problem]:
    if not directory.is_dir():
        yield _warning(shown(directory), "", "is no directory, so there are no plugins")
    elif reason := exposed(directory):
        yield _warning(shown(directory), "", reason)


def _of_plugin(directory: Path, name: str, registration: Registration) -> Iterator[Problem]:
    if reason := exposed(directory / name):
        yield _warning(name, "", reason)
    endpoint = Path(registration.endpoint)
    if reason := unanswering(endpoint):
        yield _warning(name, "remote-endpoint", f"{endpoint} {reason}")
    for path in (endpoint, endpoint.parent):
        if reason := exposed(path):
            yield _warning(name, "remote-endpoint", f"{path} {reason}")


def exposed(path: Path) -> str:
    """Who else can write something, or nothing. In a directory with the sticky bit nobody can replace what is there."""
    try:
        found = path.stat()
    except OSError:
        return ""
    sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    writers = 0 if sticky else found.st_mode
    if writers & stat.S_IWOTH:
        return f"can be written by everybody (mode {stat.S_IMODE(found.st_mode):04o})"
    if writers & stat.S_IWGRP and found.st_gid not in (0, os.getegid()):
        return f"can be written by group {found.st_gid} (mode {stat.S_IMODE(found.st_mode):04o})"
    if found.st_uid not in (0, os.geteuid()):
        return f"belongs to user {found.st_uid}, who can change it"
    return ""


def unanswering(path: Path) -> str:
    """Why nobody can be asked at a socket, or nothing: whoever serves hooks begins with its HTTP/2 settings."""
    try:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(_ANSWER_S)
            asking.connect(str(path))
            asking.sendall(frames.PREFACE + frames.settings(()))
            head = asking.recv(frames.HEADER_SIZE)
    except FileNotFoundError:
        return "does not exist: nobody serves there"
    except TimeoutError:
        return f"does not answer within {_ANSWER_S:g} s"
    except OSError as error:
        return f"cannot be reached: {error.strerror or error}"
    return "" if head[3:4] == bytes([frames.SETTINGS]) else "is served by something that does not speak gRPC"


def _asked(hook: Hook, registrations: Registrations, plugin_timeout_s: float) -> HookExplanation:
    turns = (
        PluginTurn(
            plugin=each.name,
            asked=True,
            pods=_selected(each),
            order=each.order,
            timeout_s=each.timeout_s or plugin_timeout_s,
            policy=str(each.policies[hook]),
        )
        for each in registrations.of(hook)
    )
    return HookExplanation(str(hook), CALLS_OF_HOOKS[hook], tuple(turns))


def _selected(registration: Registration) -> str:
    labels = (f"{key}={value}" for key, value in registration.match_labels.items())
    expressions = (f"{each.key} {wanted(each)}" for each in registration.match_expressions)
    return ", ".join([*labels, *expressions]) or "all pods"


def _warning(file: str, path: str, reason: str) -> Problem:
    return Problem(Detail(reason, file=file, path=path), is_error=False)
