"""Discovery: cached, shared between clusters, and complete even if one group is unavailable."""

import asyncio
import gc
import weakref
from typing import Any

import msgspec
import pytest

from governor.errors import GovernorError, Kind
from governor.kube.client.discovery import MISS_TTL_S, TTL_S, Cache, Discovery
from governor.kube.client.transport import Request, Response
from governor.kube.objects import ApiResource
from governor.process.clock import VirtualClock
from testbed.waiting import until

NOT_MODIFIED = 304


def resource(plural: str, kind: str | None, *subresources: str, scope: str = "Namespaced") -> dict[str, Any]:
    described: dict[str, Any] = {"resource": plural, "scope": scope, "verbs": ["get"]}
    if kind is not None:
        described["responseKind"] = {"group": "", "version": "", "kind": kind}
    return described | {"subresources": [{"subresource": name} for name in subresources]}


def group(name: str, **versions: Any) -> dict[str, Any]:
    listed = [
        {"version": version, "resources": resources, "freshness": "Current"} for version, resources in versions.items()
    ]
    return {"metadata": {"name": name}, "versions": listed}


def aggregated(*groups: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": list(groups)}


CORE = aggregated(group("", v1=[resource("pods", "Pod", "status", "log"), resource("nodes", "Node", scope="Cluster")]))
APPS = group("apps", v1=[resource("deployments", "Deployment")])
SCALING = group(
    "autoscaling", v2=[resource("scalers", "Scaler")], v1=[resource("scalers", "Scaler"), resource("o", "Old")]
)


class Api:
    """Serves documents by path and records the requests."""

    def __init__(self, **documents: Any) -> None:
        self.documents = {path.replace("_", "/"): document for path, document in documents.items()}
        self.etags: dict[str, str] = {}
        self.requests: list[Request] = []

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.requests]

    async def send(self, request: Request) -> Response:
        self.requests.append(request)
        document = self.documents[request.path]
        await asyncio.sleep(0)
        if isinstance(document, Exception):
            raise document
        etag = self.etags.get(request.path, "")
        if etag and request.etag == etag:
            return Response(NOT_MODIFIED, b"", etag)
        return Response(200, document if isinstance(document, bytes) else msgspec.json.encode(document), etag)

    def discovery(self, clock: VirtualClock, cache: Cache | None = None) -> Discovery:
        return Discovery(self.send, clock, weakref.WeakValueDictionary() if cache is None else cache)


def aggregated_api(*groups: dict[str, Any]) -> Api:
    return Api(_api=CORE, _apis=aggregated(*(groups or (APPS, SCALING))))


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


class TestKinds:
    async def test_a_kind_is_found_with_all_its_attributes(self, clock: VirtualClock) -> None:
        found = await aggregated_api().discovery(clock).find("", "Pod")
        subresources = frozenset({"status", "log"})
        assert found == ApiResource("", "v1", "Pod", "pods", True, frozenset({"get"}), subresources)

    async def test_the_preferred_version_is_found_unless_another_is_requested(self, clock: VirtualClock) -> None:
        discovery = aggregated_api().discovery(clock)
        assert (await discovery.find("autoscaling", "Scaler")).version == "v2"
        assert (await discovery.find("autoscaling", "Scaler", "v1")).version == "v1"
        assert (await discovery.find("autoscaling", "Old")).version == "v1"

    async def test_every_kind_is_listed_once(self, clock: VirtualClock) -> None:
        listed = [(each.kind, each.version) for each in await aggregated_api().discovery(clock).preferred_resources()]
        assert listed == [("Pod", "v1"), ("Node", "v1"), ("Deployment", "v1"), ("Scaler", "v2"), ("Old", "v1")]

    async def test_an_entry_without_a_kind_is_skipped(self, clock: VirtualClock) -> None:
        discovery = aggregated_api(group("metrics", v1=[resource("pods", None, "x"), resource("a", "A")])).discovery(
            clock
        )
        assert [each.kind for each in await discovery.preferred_resources()] == ["Pod", "Node", "A"]

    @pytest.mark.parametrize(("kind", "version"), [("Daemon", ""), ("Deployment", "v2")])
    async def test_a_kind_that_is_not_served_is_not_found(self, clock: VirtualClock, kind: str, version: str) -> None:
        with pytest.raises(GovernorError, match=f"does not serve {kind}") as caught:
            await aggregated_api().discovery(clock).find("apps", kind, version)
        assert caught.value.kind is Kind.NOT_FOUND

    @pytest.mark.parametrize("document", [b"", b"<html>", b"[]", {"kind": "PodList"}, {"kind": "Status"}, {}])
    async def test_any_other_document_is_an_error(self, clock: VirtualClock, document: Any) -> None:
        with pytest.raises(GovernorError, match="not a discovery document"):
            await Api(_api=document, _apis=aggregated()).discovery(clock).preferred_resources()


class TestCaching:
    async def test_both_roots_are_fetched_once(self, clock: VirtualClock) -> None:
        api = aggregated_api()
        discovery = api.discovery(clock)
        await asyncio.gather(*(discovery.find("apps", "Deployment") for _ in range(20)))
        await discovery.preferred_resources()
        await clock.advance(TTL_S - 1)
        await discovery.find("", "Pod")
        assert api.paths == ["/api", "/apis"]
        assert "v=v2;as=APIGroupDiscoveryList" in api.requests[0].accept

    async def test_documents_expire(self, clock: VirtualClock) -> None:
        api = aggregated_api()
        discovery = api.discovery(clock)
        await discovery.preferred_resources()
        await clock.advance(TTL_S)
        await discovery.preferred_resources()
        assert len(api.requests) == 4

    async def test_invalidation_fetches_again(self, clock: VirtualClock) -> None:
        api = aggregated_api()
        discovery = api.discovery(clock)
        await discovery.preferred_resources()
        api.documents["/apis"] = aggregated()
        discovery.invalidate()
        assert [each.kind for each in await discovery.preferred_resources()] == ["Pod", "Node"]

    async def test_a_fetch_in_progress_at_invalidation_is_not_cached(self, clock: VirtualClock) -> None:
        api = aggregated_api(APPS)
        discovery = api.discovery(clock)
        reading = asyncio.create_task(discovery.preferred_resources())
        await until(lambda: asyncio.sleep(0, len(api.requests) == 2))
        discovery.invalidate()
        api.documents["/apis"] = aggregated(APPS, SCALING)
        assert (await discovery.find("autoscaling", "Scaler")).version == "v2"
        assert len(await reading) == 3

    async def test_a_kind_added_later_is_found(self, clock: VirtualClock) -> None:
        api = aggregated_api()
        discovery = api.discovery(clock)
        await discovery.preferred_resources()
        await clock.advance(MISS_TTL_S)
        api.documents["/apis"] = aggregated(APPS, group("example.com", v1=[resource("ships", "Ship")]))
        assert (await discovery.find("example.com", "Ship")).plural == "ships"

    async def test_repeated_misses_do_not_flood_the_server(self, clock: VirtualClock) -> None:
        api = aggregated_api()
        discovery = api.discovery(clock)
        for _ in range(10):
            for _ in range(100):
                with pytest.raises(GovernorError):
                    await discovery.find("example.com", "Ship")
            await clock.advance(MISS_TTL_S / 5)
        assert len(api.requests) == 2 * 2

    async def test_unchanged_documents_are_not_transferred_again(self, clock: VirtualClock) -> None:
        api = aggregated_api()
        api.etags = {"/api": '"1"', "/apis": '"2"'}
        discovery = api.discovery(clock)
        before = await discovery.preferred_resources()
        discovery.invalidate()
        assert await discovery.preferred_resources() == before
        assert [request.etag for request in api.requests] == ["", "", '"1"', '"2"']

    async def test_a_failure_is_raised_and_not_cached(self, clock: VirtualClock) -> None:
        api = aggregated_api()
        core = api.documents["/api"]
        api.documents["/api"] = GovernorError(Kind.UNAVAILABLE, "kube-unreachable", "away")
        discovery = api.discovery(clock)
        with pytest.raises(GovernorError, match="away"):
            await discovery.preferred_resources()
        api.documents["/api"] = core
        assert len(await discovery.preferred_resources()) == 5

    async def test_clusters_with_equal_documents_share_cache_entries(self, clock: VirtualClock) -> None:
        cache: Cache = weakref.WeakValueDictionary()
        many = [aggregated_api().discovery(clock, cache) for _ in range(10)]
        for each in many:
            await each.preferred_resources()
        assert len(cache) == 2
        del many, each
        gc.collect()
        assert len(cache) == 0


class TestStaleGroup:
    @pytest.fixture
    def api(self) -> Api:
        stale = group("metrics", v1=[])
        stale["versions"][0]["freshness"] = "Stale"
        return aggregated_api(APPS, stale)

    async def test_other_groups_are_listed(self, api: Api, clock: VirtualClock) -> None:
        discovery = api.discovery(clock)
        assert [each.kind for each in await discovery.preferred_resources()] == ["Pod", "Node", "Deployment"]
        assert await discovery.stale_groups() == {"metrics"}

    async def test_its_kinds_are_unavailable_and_not_missing(self, api: Api, clock: VirtualClock) -> None:
        with pytest.raises(GovernorError, match="APIService") as caught:
            await api.discovery(clock).find("metrics", "PodMetrics")
        assert caught.value.kind is Kind.UNAVAILABLE


@pytest.mark.parametrize(
    "document", [{"kind": "APIVersions", "versions": ["v1"]}, {"kind": "APIGroupList", "groups": [{"name": "apps"}]}]
)
async def test_a_server_without_aggregated_discovery_is_too_old(clock: VirtualClock, document: Any) -> None:
    api = Api(_api=document, _apis=aggregated())
    with pytest.raises(GovernorError, match=r"older than Kubernetes 1\.30") as caught:
        await api.discovery(clock).find("", "Pod")
    assert (caught.value.kind, caught.value.code) == (Kind.UNIMPLEMENTED, "kube-server-version")
    assert api.paths == ["/api"]
