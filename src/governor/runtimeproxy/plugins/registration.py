"""A file in ``hookserver.d`` and the plugin that it registers.

| key | value | without it |
|---|---|---|
| ``remote-endpoint`` | absolute path of the plugin's socket, also as ``unix:///path`` | the file is invalid |
| ``runtime-hooks`` | list of hooks | the plugin is never called |
| ``failure-policy`` | ``Fail`` or ``Ignore``, or an object with one of them per hook | ``Ignore`` |
| ``order`` | a number; lower ones are called first, equal ones by file name | 0 |
| ``timeout`` | seconds, or a text such as ``500ms`` | the proxy's ``plugin-timeout`` |
| ``selector`` | ``matchLabels`` and ``matchExpressions`` on the pod's labels | all pods |
| ``environment`` | ``merge``, or ``replace``: variables missing from a response are removed | ``merge`` |
| ``remember`` | a list with ``environment``: hooks after the creation get the variables too | nothing is remembered |
| ``synchronize`` | whether the plugin receives what exists whenever it has connected | ``false`` |
| ``mode`` | ``enforce``, or ``observe``: changes are recorded and not made | ``enforce`` |

A null key counts as absent, as in koord-runtime-proxy. Unknown keys cause a warning and have no effect.
"""

import enum
import math
import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from governor.errors import Detail
from governor.runtimeproxy.hooks.handlers import FailurePolicy, Mode
from governor.runtimeproxy.watched_directory import FILE_LIMIT_BYTES
from governor.values.paths import render
from governor.values.selectors import Expression, matches
from governor.values.structs import explain
from governor.wire.hooks.points import Hook

SUFFIX: Final = ".json"
_SOCKET_PATH_BYTES: Final = 107
# Written by koordlet, but never called by koord-runtime-proxy either.
_NEVER_CALLED: Final = "PreRemoveRunPodSandbox"
_DURATION: Final = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<unit>ms|s|m|h)")
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class EnvironmentMode(enum.StrEnum):
    """Effect of a response on the variables that it does not have: they stay, or are removed."""

    MERGE = "merge"
    REPLACE = "replace"


class Registration(msgspec.Struct, frozen=True):
    """One plugin: its socket, hooks, order, timeout and selector."""

    name: str
    endpoint: str
    policies: Mapping[Hook, FailurePolicy]
    order: float = 0
    timeout_s: float | None = None
    match_labels: Mapping[str, str] = {}
    match_expressions: tuple[Expression, ...] = ()
    environment: EnvironmentMode = EnvironmentMode.MERGE
    remembers_environment: bool = False
    mode: Mode = Mode.ENFORCE
    synchronizes: bool = False

    @property
    def label_keys(self) -> tuple[str, ...]:
        """Return the labels that decide whether the plugin is called."""
        return (*self.match_labels, *(each.key for each in self.match_expressions))

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Return whether the plugin is called for pods with these labels."""
        return matches(labels, self.match_labels, self.match_expressions)


class _Selector(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    match_labels: dict[str, str] = {}
    match_expressions: tuple[Expression, ...] = ()


class _File(msgspec.Struct, frozen=True, rename="kebab"):
    """Content of a file, without null keys."""

    remote_endpoint: str
    runtime_hooks: tuple[str, ...] = ()
    failure_policy: str | dict[str, str | None] = ""
    order: float = 0.0
    timeout: float | str | None = None
    selector: _Selector = _Selector()
    environment: EnvironmentMode = EnvironmentMode.MERGE
    remember: tuple[Literal["environment"], ...] = ()
    mode: Mode = Mode.ENFORCE
    synchronize: bool = False


class RegistrationReader:
    """Reads one file and collects its errors and warnings; with an error it yields no registration."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.errors: list[Detail] = []
        self.warnings: list[Detail] = []

    def read(self, content: bytes | OSError) -> Registration | None:
        """Return the registration in a file's content, or None; ``content`` may be the error of reading the file."""
        if isinstance(content, OSError):
            self._error("", f"cannot be read: {content.strerror or content}")
            return None
        written = self._parse(content)
        if written is None:
            return None
        registration = Registration(
            name=self._file.removesuffix(SUFFIX),
            endpoint=self._endpoint(written.remote_endpoint),
            policies=self._policies(written),
            order=self._order(written.order),
            timeout_s=self._timeout_s(written.timeout),
            match_labels=written.selector.match_labels,
            match_expressions=written.selector.match_expressions,
            environment=written.environment,
            remembers_environment="environment" in written.remember,
            mode=written.mode,
            synchronizes=written.synchronize,
        )
        return None if self.errors else registration

    def _error(self, path: str, reason: str) -> None:
        self.errors.append(Detail(reason, file=self._file, path=path))

    def _warn(self, path: str, reason: str) -> None:
        self.warnings.append(Detail(reason, file=self._file, path=path))

    def _parse(self, content: bytes) -> _File | None:
        if len(content) > FILE_LIMIT_BYTES:
            self._error("", f"is {len(content)} bytes long; {FILE_LIMIT_BYTES} are allowed")
            return None
        try:
            tree = msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._error("", f"is not JSON: {error}" if content.strip() else "is empty")
            return None
        return self._convert(tree)

    def _convert(self, tree: Any) -> _File | None:
        if not isinstance(tree, dict):
            self._error("", "is not a JSON object")
            return None
        fields = {each.encode_name: each for each in msgspec.structs.fields(_File)}
        for key in sorted(tree.keys() - fields.keys()):
            similar = next((each for each in fields if _letters(each) == _letters(key)), "")
            self._warn(key, f"is an unknown key and has no effect{f'; did you mean {similar}?' if similar else ''}")
        tree = _without_nulls(tree)
        for key in sorted(key for key, field in fields.items() if field.required and key not in tree):
            self._error(key, "is missing")
        given = [field for key, field in fields.items() if key in tree]
        values = {each.name: self._value(each.encode_name, each.type, tree[each.encode_name]) for each in given}
        return None if self.errors else _File(**values)

    def _value(self, key: str, kind: Any, given: Any) -> Any:
        try:
            return msgspec.convert(given, kind)
        except msgspec.ValidationError as error:
            path, reason = explain(error, kind, given)
            self._error(render((key, *path)), reason)
            return None

    def _endpoint(self, text: str) -> str:
        path = text.removeprefix("unix://")
        if not path.startswith("/") or "\0" in path:
            self._error("remote-endpoint", f"{text!r} is not the absolute path of a socket")
        elif len(path.encode()) > _SOCKET_PATH_BYTES:
            self._error("remote-endpoint", f"the path of a socket has at most {_SOCKET_PATH_BYTES} bytes")
        return path

    def _policies(self, written: _File) -> dict[Hook, FailurePolicy]:
        hooks = [hook for name in written.runtime_hooks if (hook := self._hook("runtime-hooks", name))]
        if not written.runtime_hooks:
            self._warn("runtime-hooks", "names no hook, so the plugin is never called")
        path, given = "failure-policy", written.failure_policy
        if isinstance(given, str):
            return dict.fromkeys(hooks, self._policy(path, given))
        by_hook = {self._hook(path, name): self._policy(path, text) for name, text in given.items()}
        for hook in by_hook.keys() - {None, *hooks}:
            self._warn(path, f"{hook} is not in runtime-hooks")
        return {hook: by_hook.get(hook, FailurePolicy.IGNORE) for hook in hooks}

    def _hook(self, path: str, name: str) -> Hook | None:
        if name == _NEVER_CALLED:
            self._warn(path, f"{name} is never called")
            return None
        try:
            return Hook(name)
        except ValueError:
            self._error(path, f"{name!r} is not a hook; choose one of: {', '.join(Hook)}")
            return None

    def _policy(self, path: str, text: str | None) -> FailurePolicy:
        if not text:
            return FailurePolicy.IGNORE
        found = next((each for each in FailurePolicy if each.lower() == text.lower()), None)
        if found is None:
            self._error(path, f"{text!r} is not a failure policy; choose Fail or Ignore")
        return found or FailurePolicy.IGNORE

    def _order(self, order: float) -> float:
        if not math.isfinite(order):
            self._error("order", "is not a finite number")
        return order

    def _timeout_s(self, given: float | str | None) -> float | None:
        if given is None:
            return None
        timeout_s = _duration_s(given) if isinstance(given, str) else given
        if timeout_s is None or not 0 < timeout_s < math.inf:
            self._error("timeout", f"{given!r} is not a duration; write seconds, or a text such as '500ms' or '2s'")
        return timeout_s


def _letters(key: str) -> str:
    return "".join(filter(str.isalnum, key)).lower()


def _without_nulls(tree: dict[str, Any]) -> dict[str, Any]:
    """Drop null keys, except in ``matchLabels``: dropping a label there would select more pods."""
    given = _non_null(tree)
    if isinstance(selector := given.get("selector"), dict):
        given["selector"] = selector = _non_null(selector)
        if isinstance(expressions := selector.get("matchExpressions"), list):
            selector["matchExpressions"] = [_non_null(each) if isinstance(each, dict) else each for each in expressions]
    return given


def _non_null(entries: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entries.items() if value is not None}


def _duration_s(text: str) -> float | None:
    parts = list(_DURATION.finditer(text))
    if "".join(part[0] for part in parts) != text:
        return None
    return sum(float(part["number"]) * _UNIT_S[part["unit"]] for part in parts)
