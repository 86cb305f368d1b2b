"""Handlers of hooks behind one port: remote plugins, and the built-in policies."""

import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec

from governor.errors import GovernorError
from governor.runtimeproxy.hooks.changes import Difference
from governor.runtimeproxy.hooks.questions import Question
from governor.wire.hooks.points import Hook

Metadata: TypeAlias = Sequence[tuple[bytes, bytes]]
"""Header fields of the call for plugins."""
Result: TypeAlias = bytes | GovernorError
"""A handler's response, encoded, or why there is none."""
Done: TypeAlias = Callable[[Result], None]


class FailurePolicy(enum.StrEnum):
    """Effect of a handler's failure on the call: it is rejected, or the handler is ignored."""

    FAIL = "Fail"
    IGNORE = "Ignore"


class Mode(enum.StrEnum):
    """Whether a handler's changes are made, or only recorded."""

    ENFORCE = "enforce"
    OBSERVE = "observe"


class HandlerSettings(Protocol):
    """What was configured for a handler."""

    @property
    def name(self) -> str:
        """Its name in logs, metrics and explanations."""

    @property
    def policies(self) -> Mapping[Hook, FailurePolicy]:
        """Its hooks."""

    @property
    def order(self) -> float:
        """Handlers with a lower one are called first, equal ones by name."""

    @property
    def timeout_s(self) -> float | None:
        """Its own timeout, if any."""

    @property
    def mode(self) -> Mode:
        """Whether its changes are made."""

    @property
    def label_keys(self) -> Collection[str]:
        """Labels and annotations of the pod that decide whether it is called."""


class Limits(msgspec.Struct, frozen=True):
    """Bounds of one call, and its trace context."""

    timeout_s: float
    metadata: Metadata = ()


class HandlerCall(Protocol):
    """One call of a handler."""

    def cancel(self) -> None:
        """End it without a result."""

    def report(self, error: GovernorError | None) -> None:
        """Judge the handler by its response, or by the error of using it."""


class Handler(Protocol):
    """One plugin or policy. ``prepare`` and ``changes`` may run in a thread."""

    @property
    def settings(self) -> HandlerSettings:
        """Return what was configured for it."""

    def selects(self, question: Question) -> bool:
        """Return whether it is called about a pod or container."""

    def mismatch(self, question: Question) -> str:
        """Return why it is not called about a pod or container, or ``""``."""

    def prepare(self, question: Question) -> bytes:
        """Return the encoded question."""

    def start(self, hook: Hook, message: bytes, limits: Limits, done: Done) -> HandlerCall | None:
        """Send a question; None if there is nothing to wait for. Raise if the handler cannot be called."""

    def changes(self, hook: Hook, original: Question, asked: Question, response: bytes) -> Iterable[Difference]:
        """Return what it changes in the question ``asked``; ``original`` is the one before all handlers.

        Raise INVALID ``hook-message`` if the response cannot be decoded, ``hook-answer`` if it cannot be used.
        """

    def unavailable(self) -> str:
        """Return why it cannot be called at present, or ``""``."""


class Handlers:
    """All handlers, in the order of their calls; ``changed`` is called after they have changed."""

    def __init__(self) -> None:
        self.changed: Callable[[], None] = lambda: None
        self._groups: dict[str, Sequence[Handler]] = {}
        self._by_hook: dict[Hook, tuple[Handler, ...]] = {}
        self.all: tuple[Handler, ...] = ()

    def replace(self, group: str, handlers: Sequence[Handler]) -> None:
        """Replace the handlers of one group."""
        self._groups[group] = handlers
        everything = [each for own in self._groups.values() for each in own]
        self.all = tuple(sorted(everything, key=lambda each: (each.settings.order, each.settings.name)))
        self._by_hook = {hook: tuple(each for each in self.all if hook in each.settings.policies) for hook in Hook}
        self.changed()

    def of(self, hook: Hook) -> tuple[Handler, ...]:
        """Return the handlers of a hook in the order of their calls, whatever they select."""
        return self._by_hook.get(hook, ())

    def selecting(self, hook: Hook, question: Question) -> tuple[Handler, ...]:
        """Return the handlers of a hook that are called about a pod or container, in order."""
        return tuple(each for each in self.of(hook) if each.selects(question))

    def required(self, hook: Hook) -> tuple[Handler, ...]:
        """Return the handlers of a hook without which a call is rejected, whatever they select."""
        return tuple(each for each in self.of(hook) if is_required(each.settings, hook))


def is_required(settings: HandlerSettings, hook: Hook) -> bool:
    """Return whether a handler's failure rejects a call."""
    return settings.mode is Mode.ENFORCE and settings.policies[hook] is FailurePolicy.FAIL
