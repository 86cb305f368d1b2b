"""Views: decoding, equality and memory."""

import tracemalloc

import msgspec
import pytest

from governor.kube.client import Transport
from governor.kube.objects import ApiResource, Object
from governor.kube.reflector import Reflector
from governor.kube.reflector.views import Metadata, View, ViewDecoder
from governor.process.clock import SystemClock
from tests.unit.kube.http_bed import HttpServer, never_respond

OBJECTS = 2_000
PODS = ApiResource("", "v1", "Pod", "pods", namespaced=True)


class Labels(msgspec.Struct, frozen=True, gc=False):
    name: str = msgspec.field(name="app.kubernetes.io/name", default="")


class WorkloadMetadata(Metadata, frozen=True):
    generation: int = 0
    labels: Labels = Labels()


class Container(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    name: str
    ready: bool
    restart_count: int


class Status(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    phase: str = ""
    pod_ip: str = msgspec.field(name="podIP", default="")
    container_statuses: tuple[Container, ...] = ()


class Pod(View, frozen=True):
    metadata: WorkloadMetadata
    status: Status = Status()


def pod(number: int) -> bytes:
    """Return a pod of about 3.9 kB as an API server encodes it."""
    fields: Object = {f"f:field{each}": {'k:{"type":"Ready"}': {".": {}, "f:status": {}}} for each in range(28)}
    managed = {"manager": "kubelet", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": fields}}
    return msgspec.json.encode(
        {
            "metadata": {
                "name": f"web-{number}",
                "namespace": "team-a",
                "uid": f"0b0f3b4e-0000-4000-8000-{number:012d}",
                "resourceVersion": str(100_000 + number),
                "generation": 3,
                "labels": {"app.kubernetes.io/name": "web", "pod-template-hash": "6d4cf56db6"},
                "managedFields": [managed],
            },
            "spec": {"containers": [{"name": "web", "env": [{"name": f"E{n}", "value": "x" * 40} for n in range(24)]}]},
            "status": {
                "phase": "Running",
                "podIP": "10.1.2.3",
                "containerStatuses": [
                    {"name": "web", "ready": True, "restartCount": 0, "imageID": "sha256:" + "a" * 64},
                    {"name": "side", "ready": True, "restartCount": 1, "imageID": "sha256:" + "b" * 64},
                ],
            },
        }
    )


def page(objects: list[bytes]) -> bytes:
    return b'{"kind":"PodList","metadata":{"resourceVersion":"1"},"items":[' + b",".join(objects) + b"]}"


def test_views_are_equal_if_only_the_resource_version_differs() -> None:
    first = WorkloadMetadata("a", "n", "u", "1", 3)
    assert first == WorkloadMetadata("a", "n", "u", "2", 3)
    assert hash(first) == hash(WorkloadMetadata("a", "n", "u", "2", 3))
    assert Pod(first) == Pod(WorkloadMetadata("a", "n", "u", "2", 3))


@pytest.mark.parametrize(
    "other",
    [
        WorkloadMetadata("b", "n", "u", "1", 3),
        WorkloadMetadata("a", "m", "u", "1", 3),
        WorkloadMetadata("a", "n", "v", "1", 3),
        WorkloadMetadata("a", "n", "u", "1", 4),
        WorkloadMetadata("a", "n", "u", "1", 3, Labels("web")),
        Metadata("a", "n", "u", "1"),
    ],
)
def test_views_differ_if_one_of_their_fields_does(other: Metadata) -> None:
    assert WorkloadMetadata("a", "n", "u", "1", 3) != other


def test_a_view_takes_less_than_a_kibibyte() -> None:
    body = page([pod(number) for number in range(OBJECTS)])
    assert len(pod(1)) >= 3_900
    decoder = ViewDecoder(Pod)
    decoder.decode_page(body)
    tracemalloc.start()
    try:
        page_of_views = decoder.decode_page(body)
        bytes_each = tracemalloc.get_traced_memory()[0] / OBJECTS
    finally:
        tracemalloc.stop()
    assert len(page_of_views.objects) == OBJECTS
    assert bytes_each < 1024


async def test_a_reflector_of_metadata_rejects_a_view_of_other_fields() -> None:
    async with Transport() as transport, HttpServer(never_respond) as server:
        client = server.client(transport)
        with pytest.raises(ValueError, match="Pod reads fields"):
            Reflector(client, PODS, Pod, clock=SystemClock(), on_event=lambda _: None, metadata_only=True)
