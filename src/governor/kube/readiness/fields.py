"""The fields that verdicts are made of, read from a decoded object into structs; what most kinds have in common.

A field that is null counts as absent. A field of another type than Kubernetes gives it is a ValidationError, which
``table`` turns into a verdict.
"""

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from governor.kube.objects import Object
from governor.kube.readiness.verdict import Readiness, progressing, terminating

Shape = TypeVar("Shape")


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """Of any object."""

    generation: int = 0
    deletion_timestamp: str = ""
    finalizers: tuple[str, ...] = ()


class Condition(msgspec.Struct, frozen=True, rename="camel"):
    """One statement of a controller about an object."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    observed_generation: int | None = None

    @property
    def true(self) -> bool:
        """Whether it holds; not if that is unknown."""
        return self.status == "True"

    @property
    def false(self) -> bool:
        """Whether it does not hold; not if that is unknown."""
        return self.status == "False"


class Status(msgspec.Struct, frozen=True, rename="camel"):
    """What the status of many kinds has."""

    conditions: tuple[Condition, ...] = ()

    def condition(self, name: str) -> Condition | None:
        """The condition of one type."""
        return next((each for each in self.conditions if each.type == name), None)

    def holding(self, names: Iterable[str]) -> Condition | None:
        """The first of these conditions that holds."""
        found = (self.condition(name) for name in names)
        return next((each for each in found if each and each.true), None)


class Observed(Status, frozen=True, rename="camel"):
    """A status whose controller says which generation of the object it speaks of."""

    observed_generation: int | None = None


class Plain(msgspec.Struct, frozen=True):
    """An object of whatever kind."""

    metadata: Metadata = Metadata()
    status: Status = Status()


def read(manifest: Object, shape: type[Shape]) -> Shape:
    """The metadata, spec and status of an object as a struct."""
    parts = {name: _present(manifest.get(name)) for name in ("metadata", "spec", "status")}
    return msgspec.convert(_present(parts), shape)


def _present(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    return {key: value for key, value in part.items() if value is not None}


def removal(metadata: Metadata) -> Readiness | None:
    """A verdict if its removal was asked for."""
    if not metadata.deletion_timestamp:
        return None
    if metadata.finalizers:
        return terminating("Finalizers", f"waits for its finalizers: {', '.join(metadata.finalizers)}")
    return terminating("Deleted", f"its removal was asked for at {metadata.deletion_timestamp}")


def stale(metadata: Metadata, observed: int | None) -> Readiness | None:
    """A verdict if the status speaks of another generation than the present one, or says of none."""
    if observed == metadata.generation:
        return None
    seen = "none yet" if observed is None else f"generation {observed}"
    return progressing("StaleStatus", f"its controller has seen {seen}, not generation {metadata.generation}")
