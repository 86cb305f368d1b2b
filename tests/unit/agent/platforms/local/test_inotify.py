"""Watching directories, on the real kernel."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from governor.agent.platforms.local.inotify import DirectoryWatch

WITHIN_S = 10


@pytest.fixture
async def watch(tmp_path: Path) -> AsyncIterator[DirectoryWatch]:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "two" / "file").write_text("a")
    opened = DirectoryWatch((tmp_path / "one", tmp_path / "two"))
    yield opened
    opened.close()


async def test_each_kind_of_change_ends_the_wait(watch: DirectoryWatch, tmp_path: Path) -> None:
    file = tmp_path / "two" / "file"
    changes = (
        lambda: (tmp_path / "one" / "new").write_text("a"),
        lambda: file.write_text("b"),
        lambda: file.rename(tmp_path / "two" / "other"),
        (tmp_path / "two" / "other").unlink,
    )
    for change in changes:
        waiting = asyncio.create_task(watch.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        change()
        await asyncio.wait_for(waiting, WITHIN_S)


async def test_reading_a_file_is_no_change(watch: DirectoryWatch, tmp_path: Path) -> None:
    (tmp_path / "two" / "file").read_text()
    waiting = asyncio.create_task(watch.wait())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()


def test_a_missing_directory_is_ignored_and_one_that_cannot_be_watched_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a")
    DirectoryWatch((tmp_path / "missing",)).close()
    with pytest.raises(NotADirectoryError):
        DirectoryWatch((tmp_path / "file" / "below",))


async def test_a_re_created_directory_is_watched_after_arming(watch: DirectoryWatch, tmp_path: Path) -> None:
    (tmp_path / "one").rmdir()
    await asyncio.wait_for(watch.wait(), WITHIN_S)
    (tmp_path / "one").mkdir()
    watch.arm()

    (tmp_path / "one" / "new").write_text("a")

    await asyncio.wait_for(watch.wait(), WITHIN_S)
