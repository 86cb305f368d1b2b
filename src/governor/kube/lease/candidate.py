"""State machine of one candidate for a Lease: pure, so that its safety can be tested in all interleavings.

Clocks of different machines are never compared. A candidate measures on its own clock, from when it first observed the
current version of the Lease, and acquires it only after the whole duration without a change. A leader measures from
before it sent its last successful write, and steps down at the renew deadline, which is shorter. So there are never two
leaders unless one clock runs faster than another by the ratio of the two (15 s to 10 s).

A Lease whose holder was removed by a user counts as held for the whole duration, because its leader has not noticed
yet; only a release by the leader frees it at once. If a user deletes the Lease, candidates that have observed it wait;
one that has not may acquire it before the leader's next renewal.
"""

import datetime
import enum
from typing import Final, Self

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.objects import Object

RELEASED_DURATION_S: Final = 1
"""Duration in a released Lease, as client-go writes it."""

_MAX_TRANSITIONS: Final = 2**31 - 1
"""The largest number that the server accepts; counting restarts there, even if a user wrote it."""


class Timing(msgspec.Struct, frozen=True):
    """Duration of the Lease, deadline for its renewal, and period of retries, as in client-go."""

    lease_duration_s: int = 15
    renew_deadline_s: float = 10.0
    retry_period_s: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < 2 * self.retry_period_s <= self.renew_deadline_s < self.lease_duration_s:
            raise ValueError(
                "leader election needs 0 < 2 * retry_period_s <= renew_deadline_s < lease_duration_s, not "
                f"{self.retry_period_s:g}, {self.renew_deadline_s:g} and {self.lease_duration_s:g}"
            )


class Moment(msgspec.Struct, frozen=True):
    """Readings of both clocks of one machine at one time."""

    monotonic: float
    wall: datetime.datetime

    def since(self, earlier: "Moment") -> float:
        """Return the seconds since an earlier moment, by the clock that advanced more.

        The monotonic clock stops while a machine is suspended, and the wall clock may be set back.
        """
        return max(self.monotonic - earlier.monotonic, (self.wall - earlier.wall).total_seconds())


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The fields of a Lease that leader election uses; times are informational and stay strings."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None

    @property
    def is_released(self) -> bool:
        """Return whether its holder released it."""
        return not self.holder_identity and self.lease_duration_seconds == RELEASED_DURATION_S


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str


class _Manifest(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: LeaseSpec = LeaseSpec()


class Lease(msgspec.Struct, frozen=True):
    """A Lease as the API server returned it."""

    version: str
    spec: LeaseSpec
    manifest: Object

    @classmethod
    def from_manifest(cls, manifest: Object) -> Self:
        """Convert a manifest; INTERNAL if it is not a Lease."""
        try:
            converted = msgspec.convert(manifest, _Manifest)
        except msgspec.ValidationError as error:
            raise GovernorError(Kind.INTERNAL, "lease-unreadable", f"the response is not a Lease: {error}") from error
        return cls(converted.metadata.resource_version, converted.spec, manifest)

    def with_spec(self, spec: LeaseSpec) -> Object:
        """Return the manifest with this spec and all fields that leader election does not use."""
        others = {key: value for key, value in (self.manifest.get("spec") or {}).items() if key not in _OWN_FIELDS}
        return {**self.manifest, "spec": {**others, **msgspec.to_builtins(spec)}}


_OWN_FIELDS: Final = frozenset(field.encode_name for field in msgspec.structs.fields(LeaseSpec))


class Term(msgspec.Struct, frozen=True):
    """One period of leadership."""

    epoch: int
    """Number of the term; it increases with each term unless a user deletes or edits the Lease."""
    renewed: Moment
    """When the last successful write was sent."""


class Step(enum.StrEnum):
    """Next step of a candidate."""

    WAIT = "wait"
    ACQUIRE = "acquire"
    RENEW = "renew"
    STEP_DOWN = "step-down"


class Candidate(msgspec.Struct, frozen=True):
    """State of one candidate; each event returns a new state."""

    identity: str
    """Unique to this instance and never reused, not even after a restart."""
    timing: Timing = Timing()
    lease: Lease | None = None
    """The Lease last observed; None if there was none or it was not read yet."""
    acquirable_at: float = float("-inf")
    """Monotonic time from which the candidate may acquire the observed version."""
    last_sent: LeaseSpec | None = None
    """The spec last sent: it may be stored although its response was lost."""
    transitions: int = 0
    """The highest number of transitions observed."""
    term: Term | None = None

    @property
    def is_holder(self) -> bool:
        """Return whether the observed Lease names this candidate."""
        return self.lease is not None and self.lease.spec.holder_identity == self.identity

    def next_step(self, now: Moment) -> Step:
        """Return the next step, given the Lease last observed."""
        if self.term is None:
            return Step.ACQUIRE if now.monotonic >= self.acquirable_at else Step.WAIT
        return Step.RENEW if self.is_holder and self.remaining_s(now) > 0 else Step.STEP_DOWN

    def remaining_s(self, now: Moment) -> float:
        """Return how long the candidate may lead without another renewal; not positive if it may not."""
        return 0.0 if self.term is None else self.timing.renew_deadline_s - now.since(self.term.renewed)

    def acquire_spec(self, now: Moment) -> LeaseSpec:
        """Return the spec that acquires the Lease."""
        time = _format(now.wall)
        return LeaseSpec(self.identity, self.timing.lease_duration_s, time, time, self.transitions + 1)

    def renew_spec(self, now: Moment) -> LeaseSpec:
        """Return the spec that renews the Lease and overwrites changes by other clients."""
        epoch = self.term.epoch if self.term else self.transitions
        return self._updated(now, LeaseSpec(self.identity, self.timing.lease_duration_s, lease_transitions=epoch))

    def release_spec(self, now: Moment) -> LeaseSpec:
        """Return the spec that releases the Lease."""
        return self._updated(now, LeaseSpec(None, RELEASED_DURATION_S, lease_transitions=self.transitions))

    def observed(self, lease: Lease | None, now: Moment) -> "Candidate":
        """Return the state after the Lease was read; ``now`` is after the response arrived."""
        if lease is None or (self.lease is not None and lease.version == self.lease.version):
            # The holder of a deleted Lease may still lead, so the wait continues.
            return msgspec.structs.replace(self, lease=lease)
        transitions = max(self.transitions, (lease.spec.lease_transitions or 0) % _MAX_TRANSITIONS)
        acquirable_at = now.monotonic + self._held_s(lease.spec)
        return msgspec.structs.replace(self, lease=lease, acquirable_at=acquirable_at, transitions=transitions)

    def sending(self, spec: LeaseSpec) -> "Candidate":
        """Return the state before the spec is sent."""
        return msgspec.structs.replace(self, last_sent=spec)

    def written(self, lease: Lease, sent: Moment) -> "Candidate":
        """Return the state after a successful write; ``sent`` is before the request was sent."""
        after = self.observed(lease, sent)
        epoch = self.term.epoch if self.term else after.transitions
        return msgspec.structs.replace(after, term=Term(epoch, sent) if after.is_holder else None)

    def lost(self) -> "Candidate":
        """Return the state after the lease was lost or released."""
        return msgspec.structs.replace(self, term=None)

    def _held_s(self, spec: LeaseSpec) -> float:
        if spec.is_released or spec == self.last_sent:
            return 0.0
        return max(self.timing.lease_duration_s, spec.lease_duration_seconds or 0)

    def _updated(self, now: Moment, spec: LeaseSpec) -> LeaseSpec:
        before = self.lease.spec if self.lease else LeaseSpec()
        time = _format(now.wall)
        if time == before.renew_time:
            # Other candidates observe changes: a write that changes nothing would not count as a renewal.
            time = _format(now.wall + datetime.timedelta(microseconds=1))
        return msgspec.structs.replace(spec, acquire_time=before.acquire_time, renew_time=time)


def _format(wall: datetime.datetime) -> str:
    """Format a time as the API server does, so that a returned spec equals the one sent."""
    return wall.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
