"""Shared by tests of readiness: the objects of a namespace and their readiness."""

from collections.abc import Callable
from typing import Any

import pytest

from governor.kube.client import Client
from governor.kube.objects import Object
from governor.kube.readiness.kinds import ALWAYS_READY, RULES_BY_KIND, compute_readiness
from governor.kube.readiness.state import Readiness, State
from testbed.waiting import until

KNOWN = ALWAYS_READY | RULES_BY_KIND.keys()


async def served_kinds(client: Client) -> frozenset[tuple[str, str]]:
    """Return group and kind of everything that is served."""
    return frozenset((each.group, each.kind) for each in await client.discovery.preferred_resources())


class Cluster:
    """Creates objects in a cluster and waits for their readiness."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def create(self, group: str, kind: str, name: str, content: Object, **metadata: Any) -> Object:
        resource = await self._client.discovery.find(group, kind)
        manifest = {
            "apiVersion": resource.api_version,
            "kind": kind,
            "metadata": {"name": name, **({"namespace": self._namespace} if resource.namespaced else {}), **metadata},
            **content,
        }
        return await self._client.create(resource, manifest, manager="tests")

    async def readiness_of(self, group: str, kind: str, name: str) -> Readiness:
        resource = await self._client.discovery.find(group, kind)
        return compute_readiness(await self._client.get(resource, name, self._namespace if resource.namespaced else ""))

    async def reaches(self, group: str, kind: str, name: str, state: State, reason: str) -> Readiness:
        """Wait for a state and reason, and return the readiness."""
        return await self._wait_for(
            group, kind, name, lambda readiness: (readiness.state, readiness.reason), (state, reason)
        )

    async def reports(self, group: str, kind: str, name: str, message: str) -> Readiness:
        """Wait for a message, and return the readiness."""
        return await self._wait_for(group, kind, name, lambda readiness: readiness.message, message)

    async def _wait_for(
        self, group: str, kind: str, name: str, aspect: Callable[[Readiness], object], expected: object
    ) -> Readiness:
        seen: list[Readiness] = []

        async def matches() -> bool:
            seen.append(await self.readiness_of(group, kind, name))
            return aspect(seen[-1]) == expected

        try:
            await until(matches)
        except TimeoutError:
            pytest.fail(f"{kind} {name} is not {expected} but {seen[-1]}")
        return seen[-1]

    async def set_status(self, group: str, kind: str, name: str, status: Object) -> None:
        resource = await self._client.discovery.find(group, kind)
        namespace = self._namespace if resource.namespaced else ""
        change = {"status": status}
        await self._client.patch(resource, name, namespace, change, manager="tests", subresource="status")

    async def pods(self, labels: str, count: int) -> list[str]:
        """Return the names of the pods with these labels if there are exactly ``count``, otherwise an empty list."""
        pods = await self._client.discovery.find("", "Pod")
        names = [each["metadata"]["name"] async for each in self._client.list(pods, self._namespace, labels=labels)]
        return names if len(names) == count else []

    async def delete(self, group: str, kind: str, name: str) -> None:
        resource = await self._client.discovery.find(group, kind)
        await self._client.delete(resource, name, self._namespace if resource.namespaced else "")
