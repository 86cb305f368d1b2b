"""Following an accepted change across runtimes: where it stands, when waiting ends, and in which words.

A change that was accepted stays accepted, whatever happens to whoever waits for it. How it looks on a terminal is
``display``'s business.
"""

import asyncio
import enum
import random
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import msgspec

from governor.domain.conditions import STALLED_REASONS
from governor.errors import GovernorError, Kind
from governor.process.exit_codes import DONE, EXIT_CODE, NO
from governor.process.flowcontrol.backoff import Backoff, Retries
from governor.values.printing import one_line
from governor.wire.rest import RevisionProgress, RuntimeProgress, RuntimeView

if TYPE_CHECKING:
    from governor.client import Client

STAYS: Final = "the change stays accepted and goes out without you; see `governor get runtimes`"

_RECONNECT: Final = Backoff(initial_s=0.2, max_s=2.0)


class Place(enum.Enum):
    """Where a runtime stands with a revision. An absent one has no agent at all, so nobody can wait for it."""

    VERIFIED = enum.auto()
    REFUSED = enum.auto()
    ABSENT = enum.auto()
    AWAITED = enum.auto()


class Standing(msgspec.Struct, frozen=True):
    """How far one revision is out, and which runtimes have no agent."""

    progress: RevisionProgress
    absent: frozenset[str] = frozenset()

    def at(self, place: Place) -> list[RuntimeProgress]:
        """The runtimes that stand there."""
        return [each for each in self.progress.runtimes if self._place(each) is place]

    def _place(self, runtime: RuntimeProgress) -> Place:
        if runtime.done:
            return Place.VERIFIED
        if runtime.summary.state in STALLED_REASONS:
            return Place.REFUSED
        return Place.ABSENT if runtime.runtime in self.absent else Place.AWAITED


class Ending(msgspec.Struct, frozen=True):
    """What is said at the end: ``result`` in one line, and what a person should know besides."""

    code: int
    result: str
    remarks: tuple[str, ...] = ()


class Follower:
    """Follows one revision on as many connections as it takes, and keeps the last step that was seen."""

    def __init__(self, revision: int, show: Callable[[Standing], None], only: str | None = None) -> None:
        """Follow all runtimes of the revision, or ``only`` the one of this name."""
        self._revision = revision
        self._show = show
        self._only = only
        self._retries = Retries(_RECONNECT, random.Random())  # noqa: S311 - spreads load, keeps no secret
        self.last: Standing | None = None

    async def follow(self, client: "Client", timeout_s: float) -> None:
        """Show each step until no runtime is awaited any more or the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.last is None or self.last.at(Place.AWAITED):
                    await self._connect(client)
        except TimeoutError:
            return

    async def _connect(self, client: "Client") -> None:
        try:
            absent = frozenset(each.name for each in await client.runtimes() if _has_no_agent(each))
            async with aclosing(client.progress(self._revision)) as steps:
                async for progress in steps:
                    self._see(Standing(self._narrowed(progress), absent))
                    if not self.last or not self.last.at(Place.AWAITED):
                        return
        except GovernorError as error:
            if error.kind is not Kind.UNAVAILABLE:
                raise
            await asyncio.sleep(self._retries.next_delay_s())

    def _narrowed(self, progress: RevisionProgress) -> RevisionProgress:
        if self._only is None:
            return progress
        meant = tuple(each for each in progress.runtimes if each.runtime == self._only)
        return msgspec.structs.replace(progress, runtimes=meant)

    def _see(self, standing: Standing) -> None:
        self.last = standing
        self._retries.reset()
        self._show(standing)


def step_lines(old: Standing | None, new: Standing) -> list[str]:
    """One line for each runtime that moved."""
    before = {each.runtime: each.summary for each in old.progress.runtimes} if old else {}
    moved = (each for each in new.progress.runtimes if before.get(each.runtime) != each.summary)
    return [f"{told(each)} ({each.seconds:.2f} s)" for each in moved]


def told(runtime: RuntimeProgress) -> str:
    """A runtime's state in one line."""
    return f"{runtime.runtime}: {runtime.summary.state}: {one_line(runtime.summary.message)}"


def ending(revision: int, standing: Standing | None, timeout_s: float) -> Ending:
    """What the last step means for the person who waited."""
    if standing is None:
        result = f"revision {revision} accepted, but its progress could not be followed for {timeout_s:g} s"
        return Ending(EXIT_CODE[Kind.UNAVAILABLE], result, (STAYS,))
    if not standing.progress.runtimes:
        return Ending(DONE, f"revision {revision} accepted; it changes no runtime")
    verified, refused, awaited = (standing.at(place) for place in (Place.VERIFIED, Place.REFUSED, Place.AWAITED))
    result = f"revision {revision} verified on {len(verified)}/{len(standing.progress.runtimes)} runtimes"
    if refused:
        name = refused[0].runtime
        advice = (
            f"the change stays accepted; see `governor describe runtime {name}`, then correct it, "
            f"or try it again with `governor runtime retry {name}`"
        )
        return Ending(NO, result, (*map(told, (*refused, *awaited)), advice))
    if awaited:
        return Ending(EXIT_CODE[Kind.DEADLINE], f"{result} after {timeout_s:g} s", (*map(told, awaited), STAYS))
    took = f" in {max(each.seconds for each in verified):.2f} s" if verified else ""
    return Ending(DONE, result + took, tuple(map(_invitation, standing.at(Place.ABSENT))))


def _invitation(runtime: RuntimeProgress) -> str:
    name = runtime.runtime
    return f"{name}: no agent is enrolled; make a token for it with `governor token join {name}`"


def _has_no_agent(runtime: RuntimeView) -> bool:
    return any(each.type == "Connected" and each.reason in ("NotEnrolled", "Revoked") for each in runtime.conditions)
