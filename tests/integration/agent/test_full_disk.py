"""A full disk: nothing is half-written, the current state is kept, and the agent continues once there is space."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from governor.domain.reports import Report, State, acknowledged, overall
from governor.errors import GovernorError, Kind
from governor.wire.deliveries import SignedDelivery
from testbed.waiting import until
from tests.integration.agent.bed import AgentBed, component, resource_report, running_agent

SIZE = 1024 * 1024
ONE, TWO = component("one", "state.in-memory"), component("two", "state.in-memory")


@pytest.fixture(params=["resources", "state"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Mount one of the agent's directories on a separate file system of one megabyte."""
    place = tmp_path / str(request.param)
    place.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=0700", "tmpfs", str(place)], check=True)
    yield place
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
        assert contents(bed.resources) == before
        # Each retry creates temporary files for a moment.
        await until(lambda: is_clean(bed.resources))
        assert bed.sidecar.process == process
        assert bed.storage.trials() == {}
        assert (await bed.get("/v1.0/state/one/key"))[0] == 204
        ballast.unlink()
        if not is_stored:
            assert await taken(bed, following)
        assert acknowledged(await bed.wait_for_report(lambda it: it.sequence == 2 and acknowledged(it)))
        assert bed.sidecar.process == process
