"""Structs of the fields that readiness is computed from, and rules that most kinds share.

A null field counts as absent. A field of an unexpected type raises ValidationError, which ``kinds`` turns into UNKNOWN.
"""

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from governor.kube.objects import Object
from governor.kube.readiness.state import Readiness, progressing, terminating

Shape = TypeVar("Shape")


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """Metadata of any object."""

    generation: int = 0
    deletion_timestamp: str = ""
    finalizers: tuple[str, ...] = ()


class Condition(msgspec.Struct, frozen=True, rename="camel"):
    """One status condition."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    observed_generation: int | None = None

    @property
    def is_true(self) -> bool:
        """Return whether the status is True; Unknown is neither true nor false."""
        return self.status == "True"

    @property
    def is_false(self) -> bool:
        """Return whether the status is False; Unknown is neither true nor false."""
        return self.status == "False"


class Status(msgspec.Struct, frozen=True, rename="camel"):
    """A status with conditions."""

    conditions: tuple[Condition, ...] = ()

    def condition(self, name: str) -> Condition | None:
        """Return the condition of a type."""
        return next((each for each in self.conditions if each.type == name), None)

    def first_true(self, names: Iterable[str]) -> Condition | None:
        """Return the first of these conditions that is true."""
        found = (self.condition(name) for name in names)
        return next((each for each in found if each and each.is_true), None)


class ObservedStatus(Status, frozen=True, rename="camel"):
    """A status with the generation that its controller observed."""

    observed_generation: int | None = None


class AnyObject(msgspec.Struct, frozen=True):
    """An object of any kind."""

    metadata: Metadata = Metadata()
    status: Status = Status()


def convert(manifest: Object, shape: type[Shape]) -> Shape:
    """Convert metadata, spec and status of an object into a struct."""
    parts = {name: _without_nulls(manifest.get(name)) for name in ("metadata", "spec", "status")}
    return msgspec.convert(_without_nulls(parts), shape)


def termination(metadata: Metadata) -> Readiness | None:
    """Return TERMINATING if deletion was requested."""
    if not metadata.deletion_timestamp:
        return None
    if metadata.finalizers:
        return terminating("Finalizers", f"waits for its finalizers: {', '.join(metadata.finalizers)}")
    return terminating("Deleted", f"deletion was requested at {metadata.deletion_timestamp}")


def stale_status(metadata: Metadata, observed: int | None) -> Readiness | None:
    """Return PROGRESSING unless the status is of the current generation."""
    if observed == metadata.generation:
        return None
    so_far = "" if observed is None else f", only generation {observed}"
    return progressing("StaleStatus", f"its controller has not observed generation {metadata.generation} yet{so_far}")


def _without_nulls(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    return {key: value for key, value in part.items() if value is not None}
