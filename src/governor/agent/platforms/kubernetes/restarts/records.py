"""The record of a restart, which an annotation of the workload keeps: reverts by others, and failed tries. Pure.

It outlives the agent, so that neither a revert nor a failed try is forgotten by a new process.
"""

from datetime import datetime, timedelta
from typing import Annotated, Final

import msgspec

from governor.agent.platforms.kubernetes.workloads.views import RESTART
from governor.process.flowcontrol.backoff import Backoff

RECORD: Final = "runtime-governor.dev/restart-record"
"""Annotation of the workload itself, which changes no pod: what the agent needs to know after its own restart."""
ANSWERS: Final = 3
"""How often the agent writes its annotation again after another field manager reverted it."""

_BACKOFF: Final = Backoff(initial_s=15.0, max_s=1800.0)
_MAX_REASON: Final = 300


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the agent did to a workload: for which digest, the annotation before, and how often it was written.

    ``failures`` is how often the restart was undone, ``failed`` when that was last, ``reason`` why, and
    ``control_plane`` the revision of Dapr's control plane then.
    """

    digest: str
    previous: str = ""
    writes: int = 1
    failures: int = 0
    failed: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    reason: str = ""
    control_plane: str = ""

    @property
    def text(self) -> str:
        """What failed and when it is tried again, for a report; empty if nothing failed."""
        if self.failed is None:
            return ""
        times = f" {self.failures} times" if self.failures > 1 else ""
        again = (self.failed + _delay(self.failures)).isoformat(" ", "seconds")
        return (
            f"the restart was undone{times}: {self.reason}; next try after {again}, "
            "sooner if Dapr's control plane changes"
        )


class Template(msgspec.Struct, frozen=True):
    """What the agent reads of a workload before it writes: annotation and record.

    ``managers`` are other field managers of the annotation, or of the template if the annotation is gone, latest first.
    """

    digest: str = ""
    record: Record | None = None
    managers: tuple[str, ...] = ()


def next_record(template: Template, digest: str) -> Record:
    """Return the record of the next write of the annotation."""
    last = template.record
    if last is None or last.digest != digest:
        return Record(digest, template.digest)
    return msgspec.structs.replace(last, writes=last.writes + 1)


def failed_record(template: Template, digest: str, reason: str, now: datetime, control_plane: str) -> Record:
    """Return the record of a restart that is undone; the agent's own revert counts as none by others."""
    last = template.record
    if last is None or last.digest != digest:
        last = Record(digest)
    short = reason if len(reason) <= _MAX_REASON else f"{reason[: _MAX_REASON - 3]}..."
    return Record(digest, last.previous, 0, last.failures + 1, now, short, control_plane)


def revert_warning(template: Template, digest: str, answers: int = ANSWERS) -> str:
    """Return the warning to leave the workload with, if the annotation was reverted too often, or ``""``."""
    last = template.record
    if template.digest == digest or last is None or last.digest != digest or last.writes <= answers:
        return ""
    managers = ", ".join(template.managers) or "a manager that left no trace in managedFields"
    return (
        f"the annotation {RESTART} of its pod template was reverted {last.writes} times, by {managers}; "
        "it is not written again: let that manager ignore the annotation, or restart the workload with it"
    )


def deferral(template: Template, digest: str, now: datetime, control_plane: str) -> str:
    """Return why a restart that has failed before is not tried again yet, and when it is, or ``""``.

    A changed control plane may have been the repair: then only the shortest delay is waited for.
    """
    last = template.record
    if last is None or last.digest != digest or last.failed is None:
        return ""
    delay = _delay(last.failures if last.control_plane == control_plane else 1)
    # A clock that was set back must not defer it for long.
    return last.text if timedelta(0) <= now - last.failed < delay else ""


def _delay(failures: int) -> timedelta:
    return timedelta(seconds=_BACKOFF.ceiling_s(failures))
