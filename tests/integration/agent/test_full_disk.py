"""A full disk: nothing is half-written, the current state is kept, and the agent continues once there is space."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from governor.agent.ledger import DeliveryPhase
from governor.agent.state.records import VerifiedDeliveries
from governor.domain.bundles import Delivery
from governor.domain.reports import Cause, Report, State, acknowledged, overall
from governor.errors import GovernorError, Kind
from governor.wire.deliveries import SignedDelivery
from testbed.waiting import until
from tests.integration.agent.bed import WINDOW_S, AgentBed, component, is_final, resource_report, running_agent

SIZE = 1024 * 1024
ONE, TWO = component("one", "state.in-memory"), component("two", "state.in-memory")


@pytest.fixture(params=["resources", "state"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Mount one of the agent's directories on a separate file system of one megabyte."""
    with mounted(tmp_path / str(request.param)) as place:
        yield place


@contextmanager
def mounted(place: Path) -> Iterator[Path]:
    """Mount a separate file system of one megabyte."""
    place.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=0700", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        # A stopping sidecar may still use the directory.
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path) -> Path:
    ballast = place / "ballast"
    # More than fits, because a sidecar may log at the same time.
    with ballast.open("wb") as file, pytest.raises(OSError, match="No space left"):
        file.write(bytes(2 * SIZE))
    assert os.statvfs(place).f_bavail == 0
    return ballast


def contents(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in place.iterdir() if path.suffix == ".yaml"}


async def is_clean(place: Path) -> bool:
    return [path.name for path in place.rglob(".*")] == []


def is_exhausted(report: Report) -> bool:
    return report.sequence == 2 and overall(report) is State.FAILED and "exhausted" in repr(report)


async def taken(bed: AgentBed, signed: SignedDelivery) -> bool:
    try:
        await bed.inbox.accept(signed, bed.membership)
    except GovernorError as error:
        if error.kind is not Kind.EXHAUSTED:
            raise
        return False
    return True


async def test_a_full_disk_changes_nothing_and_the_change_is_retried_until_there_is_space(
    small: Path, tmp_path: Path, daprd_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(ONE)
        process, before = bed.sidecar.process, contents(bed.resources)
        ballast = fill(small)
        following = bed.sign([component("one", "state.in-memory", note="new"), TWO])

        # With a full state directory the delivery cannot be stored; the watch would deliver it again.
        is_stored = await taken(bed, following)
        assert is_stored is (small.name == "resources")
        report = await bed.wait_for_report(is_exhausted)

        assert "free space there" in resource_report(report, "two").all_evidence[-1].text
        assert {each.cause for each in report.findings} == {Cause.AGENT}
        assert contents(bed.resources) == before
        # Each retry creates temporary files for a moment.
        await until(lambda: is_clean(bed.resources))
        assert bed.sidecar.process == process
        assert await bed.state.trials() == {}
        assert (await bed.get("/v1.0/state/one/key"))[0] == 204
        ballast.unlink()
        if not is_stored:
            assert await taken(bed, following)
        assert acknowledged(await bed.wait_for_report(lambda it: it.sequence == 2 and acknowledged(it)))
        assert bed.sidecar.process == process


async def test_a_first_delivery_that_a_full_disk_does_not_record_as_verified_is_recorded_later(
    tmp_path: Path, daprd_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is what a later failure rolls back to, also after a restart of the agent."""
    with mounted(tmp_path / "state") as small:
        async with running_agent(tmp_path, daprd_binary) as bed:
            save, calls = bed.state.save_verified, list[Path]()

            async def save_on_full_disk(verified: VerifiedDeliveries | None) -> None:
                calls.append(fill(small) if not calls else small)
                await save(verified)

            monkeypatch.setattr(bed.state, "save_verified", save_on_full_disk)
            assert acknowledged(await bed.deliver(ONE))
            await until(lambda: is_longer(calls, 2))
            assert bed.ledger.phase(newest(bed)) is DeliveryPhase.ON_TRIAL
            bed.clock.advance(2 * WINDOW_S)
            await until(lambda: is_longer(calls, 4))
            calls[0].unlink()
            await until(lambda: is_settled(bed))
            # It was retried with backoff, not in a busy loop.
            assert len(calls) < 50
            broken = bed.sign([component("one", "state.no-such-type")])

        async with running_agent(tmp_path, daprd_binary) as bed:
            await bed.final_report(1)
            await bed.inbox.accept(broken, bed.membership)
            failed = await bed.wait_for_report(lambda it: it.sequence == 2 and is_final(it))
            assert "of delivery 1; verified" in failed.workloads[0].evidence[-1].text
            assert (await bed.get("/v1.0/state/one/key"))[0] == 204


def newest(bed: AgentBed) -> Delivery:
    assert bed.inbox.newest is not None
    return bed.inbox.newest


async def is_longer(calls: list[Path], count: int) -> bool:
    return len(calls) > count


async def is_settled(bed: AgentBed) -> bool:
    return bed.ledger.phase(newest(bed)) is DeliveryPhase.SETTLED and await bed.state.verified() is not None


async def test_a_full_disk_at_the_end_of_the_window_does_not_hide_drift(tmp_path: Path, daprd_binary: Path) -> None:
    with mounted(tmp_path / "state") as small:
        async with running_agent(tmp_path, daprd_binary) as bed:
            assert acknowledged(await bed.deliver(ONE))
            fill(small)
            bed.clock.advance(2 * WINDOW_S)
            (bed.resources / "component.one.yaml").unlink()
            revoked = await bed.wait_for_report(lambda it: not acknowledged(it))
    assert overall(revoked) is State.FAILED
