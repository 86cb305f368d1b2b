"""Charts are fetched, verified and kept by digest."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from governor.errors import GovernorError, Kind
from governor.reconciler.charts import archive, cache
from governor.reconciler.charts.cache import ChartCache
from governor.reconciler.charts.digests import archive_digest, digest_of
from governor.reconciler.charts.package import read_all, read_directory
from governor.reconciler.kinds.module import Chart
from tests.unit.reconciler.charts.test_package import FILES, packed, unpacked

WRONG = f"sha256:{'0' * 64}"
CONTENT = packed(FILES)


@pytest.fixture
def charts(tmp_path: Path) -> ChartCache:
    return ChartCache(tmp_path / "cache")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return unpacked(tmp_path / "chart", FILES)


class Server:
    """A web server with one packed chart, and its requests so far."""

    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        self.content = CONTENT
        self.requests = 0

    async def answer(self, _: web.Request) -> web.Response:
        self.requests += 1
        return web.Response(body=self.content, status=self.status)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    application = web.Application()
    application.router.add_get("/chart.tgz", server.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/chart.tgz"
    yield server
    await runner.cleanup()


async def error_of(charts: ChartCache, digest: str, **source: Any) -> GovernorError:
    with pytest.raises(GovernorError) as caught:
        await charts.provide(Chart(digest, **source))
    return caught.value


async def test_what_is_rendered_is_what_was_verified(charts: ChartCache, directory: Path) -> None:
    chart = Chart(digest_of(directory), directory=str(directory))
    found = await charts.provide(chart)
    (directory / "Chart.yaml").write_text("name: changed")
    assert read_directory(found) == FILES
    assert await charts.provide(chart) == found


async def test_an_archive_is_read_from_a_file_or_fetched_once(
    charts: ChartCache, server: Server, tmp_path: Path
) -> None:
    chart = Chart(archive_digest(CONTENT), archive=server.url)
    found = await charts.provide(chart)
    assert read_all(found) == FILES
    assert await charts.provide(chart) == found
    assert server.requests == 1
    (tmp_path / "a chart.tgz").write_bytes(CONTENT)
    url = f"file://{tmp_path}/a%20chart.tgz"
    assert read_all(await ChartCache(tmp_path / "other").provide(Chart(chart.digest, archive=url))) == FILES


async def test_a_wrong_digest_is_invalid_and_both_are_named(
    charts: ChartCache, server: Server, directory: Path, tmp_path: Path
) -> None:
    for source in ({"directory": str(directory)}, {"archive": server.url}):
        error = await error_of(charts, WRONG, **source)
        assert error.kind is Kind.INVALID
        actual = digest_of(directory) if "directory" in source else archive_digest(CONTENT)
        assert actual in error.message
        assert WRONG in error.message
    assert not (tmp_path / "cache").exists()


async def test_a_server_that_fails_is_unavailable_and_a_missing_chart_not_found(
    charts: ChartCache, server: Server, directory: Path
) -> None:
    for status, kind in ((503, Kind.UNAVAILABLE), (404, Kind.NOT_FOUND)):
        server.status = status
        assert (await error_of(charts, WRONG, archive=server.url)).kind is kind
    assert (await error_of(charts, WRONG, archive="http://127.0.0.1:1/a.tgz")).kind is Kind.UNAVAILABLE
    assert (await error_of(charts, WRONG, archive="file:///absent.tgz")).kind is Kind.NOT_FOUND
    assert (await error_of(charts, WRONG, directory=f"{directory}/absent")).kind is Kind.NOT_FOUND


async def test_connections_to_other_machines_must_be_encrypted(charts: ChartCache) -> None:
    error = await error_of(charts, WRONG, archive="http://charts.example.com/a.tgz")
    assert (error.kind, error.message) == (
        Kind.INVALID,
        "http://charts.example.com/a.tgz is not encrypted: use https://",
    )


async def test_an_archive_that_is_too_large_is_refused(
    charts: ChartCache, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(archive, "MAX_BYTES", len(CONTENT) - 1)
    (tmp_path / "a.tgz").write_bytes(CONTENT)
    for url in (server.url, f"file://{tmp_path}/a.tgz"):
        assert (await error_of(charts, archive_digest(CONTENT), archive=url)).kind is Kind.EXHAUSTED


async def test_an_archive_with_the_right_digest_must_still_be_a_chart(charts: ChartCache, server: Server) -> None:
    server.content = b"no archive"
    error = await error_of(charts, archive_digest(server.content), archive=server.url)
    assert error.kind is Kind.INVALID


async def test_a_chart_that_is_wanted_several_times_at_once_is_complete(charts: ChartCache, directory: Path) -> None:
    chart = Chart(digest_of(directory), directory=str(directory))
    found = await asyncio.gather(*(charts.provide(chart) for _ in range(5)))
    assert len(set(found)) == 1
    assert read_directory(found[0]) == FILES


async def test_what_a_killed_program_has_left_and_the_oldest_charts_are_removed(
    charts: ChartCache, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MAX_CHARTS", 2)
    (tmp_path / "cache" / ".new-left").mkdir(parents=True)
    found = []
    for number in range(3):
        (directory / "values.yaml").write_text(f"number: {number}")
        found.append(await charts.provide(Chart(digest_of(directory), directory=str(directory))))
        os.utime(found[-1].parent, (number, number))
    assert [each.exists() for each in found] == [False, True, True]
    assert len(list((tmp_path / "cache").iterdir())) == 2
