"""Charts in a real registry, pushed by Helm: anonymous, with TLS, with a password, and with a token for it."""

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from urllib.parse import parse_qs

import jwt
import pytest
from aiohttp import web

from governor.errors import GovernorError, Kind
from governor.kube.client import Client
from governor.reconciler.charts.access import Access, read_access
from governor.reconciler.charts.cache import ChartCache
from governor.reconciler.charts.package import read_archive
from governor.reconciler.kinds.definition import SecretKey
from governor.reconciler.kinds.module import Chart
from governor.values.secret import Secret
from testbed.kube.pki import Authority
from testbed.pytest_plugin import StartServer
from testbed.recipes import provide
from testbed.registry import Protection, Registry
from tests.contract.charts.bed import Helm
from tests.contract.kube.applyset.bed import SECRETS
from tests.contract.reconciler.render.bed import CHARTS

READER = Access("reader", Secret("s3cret"))
HTPASSWD = "reader:$2a$10$I4kqrr1MCLOHTm4McrTgPuvUwRRuahQXZEDAvACpiJzt9c6GHLML.\n"
WRONG = f"sha256:{'0' * 64}"
StartRegistry = Callable[[Protection], Awaitable[Registry]]


@pytest.fixture
def start(start_server: StartServer, tmp_path: Path) -> StartRegistry:
    """Starts registries with the same content."""
    binary = provide(["registry"])["registry"]
    return lambda protection: start_server(Registry(binary, tmp_path / "registry", protection))


@pytest.fixture
async def pushed(start: StartRegistry, tmp_path: Path) -> tuple[Registry, str]:
    """A registry with the small chart, pushed by Helm, and the digest of its manifest."""
    helm, registry = Helm(tmp_path / "helm"), await start(Protection())
    helm.output("package", str(CHARTS / "small"), f"--destination={tmp_path}")
    archive, repository = str(tmp_path / "small-1.0.0.tgz"), f"oci://{registry.address}/charts"
    outcome = await asyncio.to_thread(helm.run, "push", archive, repository, "--plain-http")
    assert outcome.returncode == 0, outcome.stderr
    return registry, (outcome.stdout + outcome.stderr).partition("Digest: ")[2].split()[0]


@pytest.fixture
def charts(tmp_path: Path) -> ChartCache:
    return ChartCache(tmp_path / "cache")


def chart_in(registry: Registry, digest: str) -> Chart:
    return Chart(digest, oci=f"oci://{registry.address}/charts/small")


async def failure(charts: ChartCache, chart: Chart, access: Access = Access()) -> GovernorError:  # noqa: B008
    with pytest.raises(GovernorError) as caught:
        await charts.provide(chart, access)
    return caught.value


async def test_a_chart_is_pulled_by_the_digest_of_its_manifest(
    pushed: tuple[Registry, str], charts: ChartCache
) -> None:
    registry, digest = pushed
    chart, wrong = chart_in(registry, digest), chart_in(registry, WRONG)
    assert (await failure(charts, wrong)).kind is Kind.NOT_FOUND
    found = await charts.provide(chart)
    assert "templates/workload.yaml" in read_archive(found.read_bytes(), "chart")
    await registry.stop()
    assert await charts.provide(chart) == found
    assert (await failure(charts, wrong)).kind is Kind.UNAVAILABLE


async def test_a_registry_is_verified_with_the_authorities_of_the_module(
    pushed: tuple[Registry, str], start: StartRegistry, charts: ChartCache, tmp_path: Path
) -> None:
    authority = Authority()
    registry = await start(Protection(*authority.issue_serving().put(tmp_path, "registry")))
    chart = chart_in(registry, pushed[1])
    other = Access(authorities=Authority("other").certificate.decode())
    assert (await failure(charts, chart, other)).kind is Kind.UNAVAILABLE
    assert (await failure(charts, chart, Access(authorities="none"))).kind is Kind.INVALID
    assert (await charts.provide(chart, Access(authorities=authority.certificate.decode()))).exists()


async def test_a_password_is_used_where_the_registry_asks_for_it(
    pushed: tuple[Registry, str], start: StartRegistry, charts: ChartCache, tmp_path: Path
) -> None:
    (tmp_path / "htpasswd").write_text(HTPASSWD)
    auth = {"htpasswd": {"realm": "charts", "path": str(tmp_path / "htpasswd")}}
    chart = chart_in(await start(Protection(auth=auth)), pushed[1])
    assert (await failure(charts, chart)).kind is Kind.UNAUTHENTICATED
    wrong = await failure(charts, chart, Access("reader", Secret("wrong-password")))
    assert wrong.kind is Kind.UNAUTHENTICATED
    assert "wrong-password" not in str(wrong)
    assert (await charts.provide(chart, READER)).exists()


class TokenServer:
    """Issues tokens for a registry to the reader."""

    def __init__(self, directory: Path) -> None:
        self._pair = Authority().issue("tokens")
        self.bundle, _ = self._pair.put(directory, "tokens")
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        scopes = parse_qs(request.query_string).get("scope", [])
        if request.headers.get("Authorization") != READER.basic()["Authorization"]:
            return web.Response(status=401)
        return web.json_response({"token": self._token(scopes)})

    def _token(self, scopes: list[str]) -> str:
        access = [dict(zip(("type", "name", "actions"), scope.split(":"), strict=True)) for scope in scopes]
        now = int(time.time())
        claims = {
            "iss": "tests",
            "sub": "a",
            "aud": "charts",
            "iat": now,
            "nbf": now - 60,
            "exp": now + 600,
            "jti": "1",
        }
        granted = [{**each, "actions": each["actions"].split(",")} for each in access]
        lines = self._pair.certificate.decode().splitlines()
        chain = ["".join(line for line in lines if "-----" not in line)]
        return jwt.encode({**claims, "access": granted}, self._pair.key, algorithm="ES256", headers={"x5c": chain})


@pytest.fixture
async def tokens(tmp_path: Path) -> AsyncIterator[TokenServer]:
    server = TokenServer(tmp_path)
    application = web.Application()
    application.router.add_get("/token", server.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/token"
    yield server
    await runner.cleanup()


async def test_credentials_are_exchanged_for_a_token_where_the_registry_asks_for_it(
    pushed: tuple[Registry, str], start: StartRegistry, charts: ChartCache, tokens: TokenServer
) -> None:
    auth = {"realm": tokens.url, "service": "charts", "issuer": "tests", "rootcertbundle": str(tokens.bundle)}
    chart = chart_in(await start(Protection(auth={"token": auth})), pushed[1])
    assert (await failure(charts, chart)).kind is Kind.UNAUTHENTICATED
    assert (await charts.provide(chart, READER)).exists()


async def test_credentials_and_authorities_are_read_from_secrets(client: Client, namespace: str) -> None:
    async def put(name: str, **data: str) -> None:
        encoded = {key.replace("_", "."): base64.b64encode(text.encode()).decode() for key, text in data.items()}
        metadata = {"name": name, "namespace": namespace}
        manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": encoded}
        await client.create(SECRETS, manifest, manager="user")

    await put("plain", username="reader", password="s3cret")
    await put("docker", _dockerconfigjson='{"auths": {"a.example.com": {"auth": "cmVhZGVyOnMzY3JldA=="}}}')
    await put("other", ca_crt="certificates")
    authority = SecretKey("other", "ca.crt")
    for name in ("plain", "docker"):
        chart = Chart(WRONG, oci="oci://a.example.com/a", credentials_secret=name, ca_secret=authority)
        expected = Access("reader", Secret("s3cret"), "certificates")
        assert await read_access(client, namespace, chart, "a.example.com") == expected
    assert await read_access(client, namespace, Chart(WRONG, oci="oci://a/a"), "a") == Access()
    for name, host in (("absent", "a"), ("other", "a"), ("docker", "b.example.com")):
        with pytest.raises(GovernorError) as caught:
            await read_access(client, namespace, Chart(WRONG, oci="oci://a/a", credentials_secret=name), host)
        assert caught.value.kind is Kind.NOT_FOUND
