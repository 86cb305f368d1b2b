"""What one candidate for a Lease knows, and what it may do: pure, so that its safety can be tried in all orders.

Two machines' clocks are never compared. A candidate counts on its own clock, from when it first saw the Lease in its
present version, and takes it only after the whole duration without a change. A leader counts from before it sent the
last write that succeeded, and stops believing in itself at the renew deadline, which is shorter. So two never lead at
once, as long as no clock runs faster than another by the ratio of the two (15 s to 10 s).

A Lease that a person empties counts as held for the whole duration, because its leader does not know it yet; only a
leader that releases marks it as free. A Lease that a person deletes leaves its leader unprotected for one retry
against candidates that have never seen it; those that have wait.
"""

import datetime
import enum
from typing import Final, Self

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.objects import Object

RELEASED_S: Final = 1
"""The duration in a Lease that its holder gave back; client-go writes the same."""

_MOST_TRANSITIONS: Final = 2**31 - 1
"""The largest number that the server takes; whoever reaches it, or a person who writes it, begins again."""


class Timing(msgspec.Struct, frozen=True):
    """How long a Lease lasts, within what its leader must have renewed it, and how often anybody tries."""

    lease_s: int = 15
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < 2 * self.retry_s <= self.renew_deadline_s < self.lease_s:
            raise ValueError(
                "an election needs 0 < 2 * retry_s <= renew_deadline_s < lease_s, not "
                f"{self.retry_s:g}, {self.renew_deadline_s:g} and {self.lease_s:g}"
            )


class Moment(msgspec.Struct, frozen=True):
    """Both clocks of one machine, read together."""

    steady: float
    wall: datetime.datetime

    def since(self, earlier: "Moment") -> float:
        """How many seconds have passed, by the clock that says more.

        The steady one stands still while a machine is suspended, and the other may be set back.
        """
        return max(self.steady - earlier.steady, (self.wall - earlier.wall).total_seconds())


class Spec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The fields of a Lease that an election is made of; times stay texts, for people."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None

    @property
    def is_released(self) -> bool:
        """Whether its holder gave it back."""
        return not self.holder_identity and self.lease_duration_seconds == RELEASED_S


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str


class _Read(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: Spec = Spec()


class Lease(msgspec.Struct, frozen=True):
    """A Lease as the API server returned it."""

    version: str
    spec: Spec
    manifest: Object

    @classmethod
    def of(cls, manifest: Object) -> Self:
        """Read one; INTERNAL if it is none."""
        try:
            read = msgspec.convert(manifest, _Read)
        except msgspec.ValidationError as error:
            raise GovernorError(Kind.INTERNAL, "lease-unreadable", f"the answer is no Lease: {error}") from error
        return cls(read.metadata.resource_version, read.spec, manifest)

    def with_spec(self, spec: Spec) -> Object:
        """The manifest that replaces this version, with what others keep in it."""
        others = {key: value for key, value in (self.manifest.get("spec") or {}).items() if key not in _OWN_FIELDS}
        return {**self.manifest, "spec": {**others, **msgspec.to_builtins(spec)}}


_OWN_FIELDS: Final = frozenset(field.encode_name for field in msgspec.structs.fields(Spec))


class Term(msgspec.Struct, frozen=True):
    """One time of leading."""

    epoch: int
    """Different for each term of a Lease, and rising unless a person deletes or edits the Lease."""
    renewed: Moment
    """When the last write that succeeded was sent."""


class Step(enum.StrEnum):
    """What a candidate does next."""

    WAIT = "wait"
    TAKE = "take"
    RENEW = "renew"
    STEP_DOWN = "step-down"


class Candidate(msgspec.Struct, frozen=True):
    """One candidate; each thing that happens to it makes a new value."""

    identity: str
    """Its own alone, and never used again: not after a restart either."""
    timing: Timing = Timing()
    lease: Lease | None = None
    """As last seen; nothing if there was none, or nobody has looked."""
    free_at: float = float("-inf")
    """The steady time from which it may take the Lease in this version."""
    sent: Spec | None = None
    """What it last tried to write: an answer that was lost may have meant success."""
    highest: int = 0
    """The highest number of transitions that it has seen."""
    term: Term | None = None

    def step(self, now: Moment) -> Step:
        """The decision, from what was last seen."""
        if self.term is None:
            return Step.TAKE if now.steady >= self.free_at else Step.WAIT
        return Step.RENEW if self.is_holder and self.remaining_s(now) > 0 else Step.STEP_DOWN

    @property
    def is_holder(self) -> bool:
        """Whether the Lease, as last seen, names it."""
        return self.lease is not None and self.lease.spec.holder_identity == self.identity

    def remaining_s(self, now: Moment) -> float:
        """For how long it may lead without another renewal; not positive if it may not."""
        return 0.0 if self.term is None else self.timing.renew_deadline_s - now.since(self.term.renewed)

    def saw(self, lease: Lease | None, now: Moment) -> "Candidate":
        """It has read the Lease; ``now`` is after the answer came."""
        if lease is None or (self.lease is not None and lease.version == self.lease.version):
            # A Lease that is gone does not end what its holder believes.
            return msgspec.structs.replace(self, lease=lease)
        highest = max(self.highest, (lease.spec.lease_transitions or 0) % _MOST_TRANSITIONS)
        free_at = now.steady + self._held_s(lease.spec)
        return msgspec.structs.replace(self, lease=lease, free_at=free_at, highest=highest)

    def _held_s(self, spec: Spec) -> float:
        if spec.is_released or spec == self.sent:
            return 0.0
        return max(self.timing.lease_s, spec.lease_duration_seconds or 0)

    def claim(self, now: Moment) -> Spec:
        """What it writes to take the Lease."""
        time = _text(now.wall)
        return Spec(self.identity, self.timing.lease_s, time, time, self.highest + 1)

    def renewal(self, now: Moment) -> Spec:
        """What it writes to keep the Lease; it also undoes what somebody changed by hand."""
        epoch = self.term.epoch if self.term else self.highest
        return self._rewritten(now, Spec(self.identity, self.timing.lease_s, lease_transitions=epoch))

    def release(self, now: Moment) -> Spec:
        """What it writes to give the Lease back."""
        return self._rewritten(now, Spec(None, RELEASED_S, lease_transitions=self.highest))

    def _rewritten(self, now: Moment, spec: Spec) -> Spec:
        before = self.lease.spec if self.lease else Spec()
        time = _text(now.wall)
        if time == before.renew_time:
            # Others go by changes: a write that changes nothing would not be one.
            time = _text(now.wall + datetime.timedelta(microseconds=1))
        return msgspec.structs.replace(spec, acquire_time=before.acquire_time, renew_time=time)

    def sends(self, spec: Spec) -> "Candidate":
        """It is about to write this."""
        return msgspec.structs.replace(self, sent=spec)

    def wrote(self, lease: Lease, sent: Moment) -> "Candidate":
        """Its write succeeded; ``sent`` is before it was sent."""
        seen = self.saw(lease, sent)
        epoch = self.term.epoch if self.term else seen.highest
        return msgspec.structs.replace(seen, term=Term(epoch, sent) if seen.is_holder else None)

    def lost(self) -> "Candidate":
        """It no longer leads."""
        return msgspec.structs.replace(self, term=None)


def _text(wall: datetime.datetime) -> str:
    """The notation of the API server, so that what comes back is equal to what was sent."""
    return wall.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
