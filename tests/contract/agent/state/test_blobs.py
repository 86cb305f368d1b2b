"""Both homes of the agent's state, as one contract."""

import random

import pytest

from tests.contract.agent.state.bed import Home

LARGE = random.Random(7).randbytes(3_000_000)


@pytest.mark.parametrize("data", [b"", b"{}", b"a" * 5_000_000, LARGE], ids=["empty", "small", "compressible", "large"])
async def test_a_value_is_read_back_also_after_a_restart(home: Home, data: bytes) -> None:
    blobs = await home.open()
    await blobs.write("newest.json", data)
    assert await blobs.read("newest.json") == data
    assert await (await home.open()).read("newest.json") == data


async def test_a_value_replaces_the_previous_one_and_no_other(home: Home) -> None:
    blobs = await home.open()
    for data in (LARGE, b"second", b"third"):
        await blobs.write("newest.json", data)
        await blobs.write("trials.json", data + b"!")
    reopened = await home.open()
    assert (await reopened.read("newest.json"), await reopened.read("trials.json")) == (b"third", b"third!")


async def test_what_was_never_written_or_was_removed_is_absent(home: Home) -> None:
    blobs = await home.open()
    assert await blobs.read("verified.json") is None
    await blobs.remove("verified.json")
    await blobs.write("verified.json", b"one")
    await blobs.remove("verified.json")
    assert (await blobs.read("verified.json"), await (await home.open()).read("verified.json")) == (None, None)


async def test_a_removed_value_can_be_written_again(home: Home) -> None:
    blobs = await home.open()
    for data in (b"one", b"two"):
        await blobs.write("identity-0123456789abcdef.key", data)
        assert await blobs.read("identity-0123456789abcdef.key") == data
        await blobs.remove("identity-0123456789abcdef.key")


async def test_the_location_names_the_value(home: Home) -> None:
    assert "newest.json" in (await home.open()).location("newest.json")
