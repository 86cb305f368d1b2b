"""``lint``: errors and warnings in files of plugins and policies, found without a proxy, which does not import this.

The files are read by the proxy's own code. In addition it checks whether each plugin's socket responds, who else can
write the files, and how the plugins' orders and timeouts fit together.
"""

import itertools
import os
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from governor.errors import Detail
from governor.runtimeproxy.grpc.deadlines import reserve_s
from governor.runtimeproxy.hooks.calls import CALL_OF_HOOK
from governor.runtimeproxy.hooks.dispatch import RESPONSE_RESERVE_S, RUNTIME_RESERVE_S
from governor.runtimeproxy.hooks.handlers import HandlerSettings
from governor.runtimeproxy.http2 import frames
from governor.runtimeproxy.ops.control import HookExplanation, PluginEntry
from governor.runtimeproxy.plugins.registration import SUFFIX, Registration
from governor.runtimeproxy.plugins.registry import Problem, Registrations, reload
from governor.runtimeproxy.policies.reader import Policies
from governor.runtimeproxy.policies.reader import reload as read_policies
from governor.runtimeproxy.policies.source import has_cgroup_v2
from governor.runtimeproxy.watched_directory import POLICY_SUFFIXES, contents_of, display_name, stamps_in
from governor.values.printing import one_line, table
from governor.wire.hooks.points import Hook

_PROBE_TIMEOUT_S: Final = 2.0


class Entry(msgspec.Struct, frozen=True):
    """A plugin or policy, as far as its turn matters."""

    file: str
    settings: HandlerSettings
    match_labels: Mapping[str, str] = {}
    pods: str = "all pods"


class LintReport(msgspec.Struct, frozen=True):
    """All problems, errors first, and the plugins and policies of each hook."""

    directory: str
    problems: tuple[Problem, ...]
    hooks: tuple[HookExplanation, ...]

    @property
    def errors(self) -> int:
        """Return the number of errors."""
        return sum(each.is_error for each in self.problems)

    @property
    def warnings(self) -> int:
        """Return the number of warnings."""
        return len(self.problems) - self.errors


def run_lint(directory: Path, policies: Path, plugin_timeout_s: float, request_timeout_s: float) -> LintReport:
    """Check files, sockets and permissions; ``request_timeout_s`` is kubelet's."""
    try:
        registrations = reload(Registrations(), contents_of(directory, stamps_in(directory, (SUFFIX,))))
        written = contents_of(policies, stamps_in(policies, POLICY_SUFFIXES))
    except OSError as error:
        unreadable = Problem(
            Detail(f"cannot be read: {error.strerror or error}", file=display_name(directory)), is_error=True
        )
        return LintReport(display_name(directory), (unreadable,), ())
    in_force = read_policies(Policies(), written, has_unified=has_cgroup_v2())
    entries = [*_plugin_entries(registrations), *_policy_entries(in_force)]
    found = [
        *registrations.problems,
        *in_force.problems,
        *_directory_problems(directory),
        *(_writable(policies) if policies.is_dir() else ()),
        *(each for name, own in registrations.by_file.items() for each in _plugin_problems(directory, name, own)),
        *(each for name in in_force.by_file for each in _writable(policies / name)),
        *shared_orders(entries),
        *excessive_timeouts(entries, plugin_timeout_s, request_timeout_s),
    ]
    problems = sorted(found, key=lambda each: (not each.is_error, each.detail.file, each.detail.path))
    hooks = tuple(_hook_explanation(hook, entries, plugin_timeout_s) for hook in Hook)
    return LintReport(display_name(directory), tuple(problems), hooks)


def _plugin_entries(registrations: Registrations) -> Iterator[Entry]:
    for file, each in registrations.by_file.items():
        expressions = (f"{own.key} {own.requirement}" for own in each.match_expressions)
        yield Entry(file, each, each.match_labels, _pods(each.match_labels, *expressions))


def _policy_entries(policies: Policies) -> Iterator[Entry]:
    for file, own in policies.by_file.items():
        for each in own:
            match = each.spec.match
            named = {
                "namespace": match.namespaces,
                "QoS class": match.qos_classes,
                "container": match.containers,
                "runtime handler": match.runtime_handlers,
            }
            conditions = [f"{name} in ({', '.join(values)})" for name, values in named.items() if values]
            conditions += [f"annotation {key}={value}" for key, value in match.annotations.items()]
            conditions += [f"{own.key} {own.requirement}" for own in match.match_expressions]
            yield Entry(file, each, match.match_labels, _pods(match.match_labels, *conditions))


def _pods(labels: Mapping[str, str], *conditions: str) -> str:
    return ", ".join([*(f"{key}={value}" for key, value in labels.items()), *conditions]) or "all pods"


def _of(entries: Iterable[Entry], hook: Hook) -> list[Entry]:
    """Return the plugins and policies of a hook in the order of their calls."""
    found = [each for each in entries if hook in each.settings.policies]
    return sorted(found, key=lambda each: (each.settings.order, each.settings.name))


def report_text(report: LintReport) -> str:
    """Return the report as text."""
    return "\n\n".join(_parts(report))


def _parts(report: LintReport) -> Iterator[str]:
    if report.problems:
        yield "\n".join(one_line(str(each)) for each in report.problems)
    rows = [
        (
            hook.hook,
            hook.call,
            f"{number}.",
            each.plugin,
            f"{each.order:g}",
            f"{each.timeout_s:g}s",
            each.policy,
            each.mode,
            each.pods,
        )
        for hook in report.hooks
        for number, each in enumerate(hook.plugins, 1)
    ]
    if rows:
        yield table(("HOOK", "BY CALL", "TURN", "PLUGIN", "ORDER", "TIMEOUT", "FAILURE", "MODE", "PODS"), rows)
    yield f"{one_line(report.directory)}: {_count(report.errors, 'error')}, {_count(report.warnings, 'warning')}"


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def shared_orders(entries: Sequence[Entry]) -> Iterator[Problem]:
    """Yield plugins and policies whose order depends only on their names."""
    shared: dict[str, list[tuple[str, str]]] = {}
    for hook in Hook:
        for first, second in itertools.combinations(_of(entries, hook), 2):
            if first.settings.order == second.settings.order and not _disjoint(first, second):
                shared.setdefault(second.file, []).append((first.file, str(hook)))
    for file, found in shared.items():
        # Each of them once, in the order of discovery.
        others, hooks = (", ".join(dict.fromkeys(each)) for each in zip(*found, strict=True))
        reason = f"equals that of {others}, so they are called in the order of their names at {hooks}"
        yield _warning(file, "order", reason)


def _disjoint(first: Entry, second: Entry) -> bool:
    """Return whether the selectors plainly exclude each other."""
    return any(second.match_labels.get(key, value) != value for key, value in first.match_labels.items())


def excessive_timeouts(
    entries: Sequence[Entry], plugin_timeout_s: float, request_timeout_s: float
) -> Iterator[Problem]:
    """Yield hooks whose plugins' timeouts together exceed the time that kubelet's deadline leaves them."""
    for hook in Hook:
        plugins = [each for each in _of(entries, hook) if isinstance(each.settings, Registration)]
        total_s = sum(each.settings.timeout_s or plugin_timeout_s for each in plugins)
        left_s = request_timeout_s - reserve_s(
            request_timeout_s, RESPONSE_RESERVE_S if hook.is_post else RUNTIME_RESERVE_S
        )
        if total_s > left_s:
            names = ", ".join(each.file for each in plugins)
            reason = (
                f"add up to {total_s:g} s for {hook}; of kubelet's {request_timeout_s:g} s only {left_s:g} s are for "
                "plugins, so each timeout is shortened"
            )
            yield _warning(names, "timeout", reason)


def _writable(path: Path) -> Iterator[Problem]:
    if reason := writable_by_others(path):
        yield _warning(display_name(path), "", reason)


def _directory_problems(directory: Path) -> Iterator[Problem]:
    if not directory.is_dir():
        yield _warning(display_name(directory), "", "is not a directory, so there are no plugins")
    elif reason := writable_by_others(directory):
        yield _warning(display_name(directory), "", reason)


def _plugin_problems(directory: Path, name: str, registration: Registration) -> Iterator[Problem]:
    if reason := writable_by_others(directory / name):
        yield _warning(name, "", reason)
    endpoint = Path(registration.endpoint)
    if reason := probe_socket(endpoint):
        yield _warning(name, "remote-endpoint", f"{endpoint} {reason}")
    for path in (endpoint, endpoint.parent):
        if reason := writable_by_others(path):
            yield _warning(name, "remote-endpoint", f"{path} {reason}")


def writable_by_others(path: Path) -> str:
    """Return who else can write a path, or ``""``; entries of a sticky directory cannot be replaced by others."""
    try:
        found = path.stat()
    except OSError:
        return ""
    sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    writers = 0 if sticky else found.st_mode
    if writers & stat.S_IWOTH:
        return f"is world-writable (mode {stat.S_IMODE(found.st_mode):04o})"
    if writers & stat.S_IWGRP and found.st_gid not in (0, os.getegid()):
        return f"is writable by group {found.st_gid} (mode {stat.S_IMODE(found.st_mode):04o})"
    if found.st_uid not in (0, os.geteuid()):
        return f"is owned by user {found.st_uid}, who can change it"
    return ""


def probe_socket(path: Path) -> str:
    """Return why a socket is not served by a gRPC server, or ``""``; a server first sends its HTTP/2 SETTINGS."""
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(_PROBE_TIMEOUT_S)
            client.connect(str(path))
            client.sendall(frames.PREFACE + frames.settings(()))
            head = client.recv(frames.HEADER_SIZE)
    except FileNotFoundError:
        return "does not exist; the plugin is not running"
    except TimeoutError:
        return f"does not respond within {_PROBE_TIMEOUT_S:g} s"
    except OSError as error:
        return f"cannot be reached: {error.strerror or error}"
    return "" if head[3:4] == bytes([frames.SETTINGS]) else "is not served by a gRPC server"


def _hook_explanation(hook: Hook, entries: Sequence[Entry], plugin_timeout_s: float) -> HookExplanation:
    shown = (
        PluginEntry(
            plugin=each.settings.name,
            asked=True,
            pods=each.pods,
            order=each.settings.order,
            timeout_s=each.settings.timeout_s or plugin_timeout_s,
            policy=str(each.settings.policies[hook]),
            mode=str(each.settings.mode),
        )
        for each in _of(entries, hook)
    )
    return HookExplanation(str(hook), CALL_OF_HOOK[hook], tuple(shown))


def _warning(file: str, path: str, reason: str) -> Problem:
    return Problem(Detail(reason, file=file, path=path), is_error=False)
