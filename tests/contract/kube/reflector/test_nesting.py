"""Objects nested deeper than a recursive decoder can read, stored by a real API server."""

from typing import Any

import msgspec
import pytest

from governor.kube.client import Client, Request
from governor.kube.objects import ApiResource, ObjectRef
from governor.kube.reflector import Reflector, Unreadable, View
from governor.process.clock import SystemClock
from tests.contract.kube.applyset.bed import DEFINITIONS, definition, kind_of
from tests.contract.kube.reflector.bed import FAST, MANAGER, eventually, running, until_true

LEVELS = 3_000
KIND = "Tree"


class Spec(msgspec.Struct, frozen=True):
    size: int = 0


class Sized(View, frozen=True):
    """A view that does not read the deep part."""

    spec: Spec = Spec()


class Whole(View, frozen=True):
    """A view that reads all of it."""

    spec: Any = None


@pytest.fixture
async def trees(client: Client, namespace: str) -> ApiResource:
    """A kind that accepts any fields."""
    manifest = definition(KIND, f"{namespace}.example.dev")
    await client.create(DEFINITIONS, manifest, manager=MANAGER)
    resource = kind_of(manifest)
    await eventually(lambda: client.send(Request("GET", resource.path(namespace))))
    return resource


def tree(resource: ApiResource, name: str, size: object, levels: int = 0) -> bytes:
    deep = b'{"a":' * levels + b"1" + b"}" * levels
    spec = {"size": size, "tree": msgspec.Raw(deep)}
    manifest = {"apiVersion": resource.api_version, "kind": KIND, "metadata": {"name": name}, "spec": spec}
    return msgspec.json.encode(manifest)


async def create(client: Client, resource: ApiResource, namespace: str, body: bytes) -> None:
    await client.send(Request("POST", resource.path(namespace), body=body))


async def test_an_object_of_3000_levels_hides_no_other_in_lists_and_watches(
    client: Client, namespace: str, trees: ApiResource
) -> None:
    def reflector(view: Any) -> Reflector[Any]:
        return Reflector(
            client, trees, view, clock=SystemClock(), on_event=lambda _: None, namespace=namespace, backoff=FAST
        )

    async def put(name: str, size: object, levels: int = 0) -> None:
        await create(client, trees, namespace, tree(trees, name, size, levels))

    def ref(name: str) -> ObjectRef:
        return ObjectRef(trees.group, KIND, namespace, name)

    await put("listed", 1, LEVELS)
    await put("listed-bad", "large", LEVELS)
    await put("beside", 2)
    sized, whole = reflector(Sized), reflector(Whole)
    async with running(sized.run()), running(whole.run()):
        await until_true(lambda: sized.is_synced and whole.is_synced)
        await put("watched", 3, LEVELS)
        await put("watched-bad", "large", LEVELS)
        await put("last", 4)
        await until_true(lambda: len(sized.store) == len(whole.store) == 6)
        assert sized.last_error == whole.last_error == ""

    for name, size in (("listed", 1), ("beside", 2), ("watched", 3), ("last", 4)):
        view = sized.store[ref(name)]
        assert isinstance(view, Sized)
        assert view.spec.size == size
    for name in ("listed-bad", "watched-bad"):
        bad = sized.store[ref(name)]
        assert isinstance(bad, Unreadable)
        assert bad.reason == "Expected `int`, got `str` - at `$.spec.size`"
    for name in ("beside", "last"):
        assert isinstance(whole.store[ref(name)], Whole)
