"""The platform of an agent: where resources are written and sidecars run. The port behind which platforms differ."""

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from governor.agent.verification.findings import DriftFindings, Findings
from governor.domain.bundles import Delivery
from governor.domain.documents import ResourceRef
from governor.domain.inventories import Inventory
from governor.domain.reports import Evidence, WorkloadRef
from governor.domain.windows import Hold

Progress: TypeAlias = Callable[[Findings], None]
"""Receives the findings of a delivery once it is written, and again while its instances are judged."""

Superseded: TypeAlias = Callable[[], bool]
"""Returns whether a newer delivery has arrived: then a platform ends what it does soon."""


class InventorySource(Protocol):
    """Reads what is in the namespaces of a runtime."""

    async def read(self) -> Inventory:
        """Return the inventory."""
        ...


class Platform(Protocol):
    """What the loop needs of a platform. It calls no two of these methods at once, except ``run``."""

    @property
    def workloads(self) -> Mapping[WorkloadRef, int]:
        """The workloads, with the number of their instances."""
        ...

    def refs(self, delivery: Delivery) -> tuple[ResourceRef, ...]:
        """Return the resources that a delivery sets or removes."""
        ...

    def hold(self) -> Hold | None:
        """Return the hold that an administrator has set on the platform itself, or None."""
        ...

    def start(self) -> None:
        """Start what waits for a first delivery; do nothing on a platform where the agent starts no sidecar."""
        ...

    async def converge(
        self, delivery: Delivery, received: Evidence, progress: Progress, superseded: Superseded
    ) -> Findings:
        """Apply a delivery, verify it and return the findings. What is applied already is only verified again.

        A delivery whose windows or hold do not allow to write it, or to restart a running sidecar for it, is not
        written. The findings name the restraint.
        """
        ...

    async def find_drift(self, delivery: Delivery, *, after_failure: bool = False) -> DriftFindings | None:
        """Return how the runtime differs from a delivery that was applied, or None; revoke the proofs concerned.

        ``after_failure`` of a change on trial, whose reason may be another program: whatever ``apply.drift`` says, and
        also if everything is as delivered again. What is found once is not found again, unless it is still there.
        """
        ...

    async def release(self) -> None:
        """Remove what only the delivery before the verified one needed. Called after the result is reported."""
        ...

    async def run(self) -> None:
        """Run the platform's own tasks until cancelled; wake the loop when it must reconcile."""
        ...
