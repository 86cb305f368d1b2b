"""Registries that answer with something else than they were asked for."""

import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from governor.errors import GovernorError, Kind
from governor.reconciler.charts.access import Access
from governor.reconciler.charts.digests import archive_digest
from governor.reconciler.charts.oci import fetch
from governor.values.secret import Secret
from tests.unit.reconciler.charts.test_package import FILES, packed

CONTENT = packed(FILES)
CHART = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"


class Hostile:
    """A registry that answers all requests for manifests, and for blobs, in the same way."""

    def __init__(self) -> None:
        self.url = ""
        self.manifest = manifest(CHART)
        self.blob = CONTENT
        self.challenge = ""

    async def answer(self, request: web.Request) -> web.Response:
        if self.challenge:
            return web.Response(status=401, headers={"WWW-Authenticate": self.challenge})
        return web.Response(body=self.manifest if "/manifests/" in request.path else self.blob)


def manifest(*media_types: str) -> bytes:
    layers = [{"mediaType": each, "digest": archive_digest(CONTENT), "size": 1} for each in media_types]
    return json.dumps({"schemaVersion": 2, "layers": layers}).encode()


@pytest.fixture
async def registry() -> AsyncIterator[Hostile]:
    registry = Hostile()
    application = web.Application()
    application.router.add_get("/v2/charts/a/{path:.*}", registry.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    registry.url = f"oci://127.0.0.1:{runner.addresses[0][1]}/charts/a"
    yield registry
    await runner.cleanup()


async def test_a_manifest_with_a_chart_leads_to_its_archive(registry: Hostile) -> None:
    assert await fetch(registry.url, archive_digest(registry.manifest), Access()) == CONTENT


@pytest.mark.parametrize("content", [manifest("text/plain"), manifest(CHART, CHART), b"{", b'{"layers": 1}'])
async def test_a_manifest_without_one_chart_is_invalid(registry: Hostile, content: bytes) -> None:
    registry.manifest = content
    with pytest.raises(GovernorError, match=registry.url) as caught:
        await fetch(registry.url, archive_digest(content), Access())
    assert caught.value.kind is Kind.INVALID


async def test_other_content_than_that_of_the_digest_is_invalid(registry: Hostile) -> None:
    with pytest.raises(GovernorError, match="has the digest") as caught:
        await fetch(registry.url, archive_digest(b"another"), Access())
    assert caught.value.kind is Kind.INVALID
    registry.blob = b"another"
    with pytest.raises(GovernorError, match=r"the chart in .* has the digest"):
        await fetch(registry.url, archive_digest(registry.manifest), Access())


@pytest.mark.parametrize("realm", ["http://tokens.example.com/", "ftp://127.0.0.1/", ""])
async def test_credentials_are_sent_nowhere_without_encryption(registry: Hostile, realm: str) -> None:
    registry.challenge = f'Bearer realm="{realm}",service="charts"'
    with pytest.raises(GovernorError, match="the registry asks for credentials to be sent without TLS to") as caught:
        await fetch(registry.url, archive_digest(registry.manifest), Access("reader", Secret("s3cret")))
    assert caught.value.kind is Kind.DENIED
