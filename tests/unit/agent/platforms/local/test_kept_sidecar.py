"""A sidecar whose plan is ``keep`` is checked all the same: its stored proofs do not say that it still responds."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import cast

import msgspec
import pytest

from governor.agent.platforms.local.plan import SidecarAction, SidecarPlan
from governor.agent.platforms.local.sidecars.sidecar import Sidecar
from governor.agent.platforms.local.sidecars.verifier import SidecarVerifier
from governor.agent.redaction import Redactor
from governor.agent.verification.sidecar_api import LoadedComponent, Metadata, SidecarStatus
from governor.agent.verification.verdicts import Expected, Instance, Proof, Reading
from governor.domain.documents import ApplyPolicy, ResourceRef
from governor.domain.reports import Cause, Evidence, Finding, State
from governor.process.clock import VirtualClock
from tests.unit.agent.platforms.local.test_plan import component

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ONE = component("one")
REF = ResourceRef("Component", "default", "one")
EXPECTED = Expected(REF, ONE, ONE)
PROOF = Proof(EXPECTED.digest, Evidence("sidecar app", NOW, "seen"))
LISTED = Metadata("app", components=(LoadedComponent("one", "state.redis", "v1"),))
RUNNING = Reading(
    NOW,
    Instance("1", "process 100"),
    status=SidecarStatus(healthy=True, metadata=LISTED, counters=None),
    load_evidence="watches it",
)


class Stub:
    """A sidecar that is read as the test says."""

    app_id = "app"

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self.kept: Mapping[ResourceRef, Proof] = {REF: PROOF}

    async def read(self) -> Reading:
        return self._reading

    def proofs(self, _reading: Reading) -> Mapping[ResourceRef, Proof]:
        return self.kept

    async def keep_proofs(self, _reading: Reading, proofs: Mapping[ResourceRef, Proof]) -> None:
        self.kept = proofs


class EagerClock(VirtualClock):
    """A clock on which sleeping takes no time."""

    async def sleep(self, seconds: float) -> None:
        self._move_to(self.monotonic() + seconds)


async def check(before: Reading, now: Reading) -> tuple[Finding, Stub]:
    stub = Stub(now)
    verifier = SidecarVerifier(cast("Sidecar", stub), ApplyPolicy(), lambda: False, EagerClock())
    planned = SidecarPlan("app", SidecarAction.KEEP, (EXPECTED,), before, {REF: PROOF})
    return (await verifier.verify(planned, Redactor()))[REF], stub


async def test_a_sidecar_that_responds_and_lists_everything_keeps_its_evidence() -> None:
    found, _ = await check(RUNNING, RUNNING)
    assert found == Finding(state=State.VERIFIED, evidence=(PROOF.evidence,))


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (None, "the sidecar does not respond"),
        (SidecarStatus(healthy=False, metadata=LISTED, counters=None), "the sidecar is not healthy"),
        (SidecarStatus(healthy=True, metadata=Metadata("app"), counters=None), "the sidecar does not list it"),
    ],
)
async def test_an_unresponsive_or_incomplete_sidecar_fails_and_is_not_restarted(
    status: SidecarStatus | None, text: str
) -> None:
    now = msgspec.structs.replace(RUNNING, status=status)
    found, stub = await check(now, now)
    assert (found.state, found.cause, found.evidence[-1].text) == (State.FAILED, Cause.RUNTIME, text)
    # The same process may recover.
    assert stub.kept == {REF: PROOF}
