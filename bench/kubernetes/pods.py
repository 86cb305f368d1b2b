"""Pods with Dapr that exist as objects only: their sidecars are replayed, and no kubelet runs them."""

from typing import Any, Final

from bench.concurrency import run_bounded
from testbed.kube.control_plane import ControlPlane
from testbed.sidecar_replay import SidecarReplay, address

NAMESPACE: Final = "shop"
APP_ID: Final = "orders"


class Pods:
    """Pods with Dapr as objects, owned by StatefulSets, whose sidecars are replayed."""

    def __init__(self, plane: ControlPlane, replay: SidecarReplay, per_workload: int) -> None:
        self._plane = plane
        self._replay = replay
        self._per_workload = per_workload
        self._owners: dict[int, str] = {}

    async def create(self, count: int) -> None:
        """Create the workloads, then the pods with their status."""
        for number in range(-(-count // self._per_workload)):
            made = await self._post("/apis/apps/v1", "statefulsets", self._stateful_set(number))
            self._owners[number] = made["metadata"]["uid"]
        await run_bounded(self._create, range(count), 16)

    async def _create(self, number: int) -> None:
        await self._post("/api/v1", "pods", self._pod(number))
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{self._pod_name(number)}"
        current = await self._plane.ask("GET", path)
        await self._plane.ask("PUT", f"{path}/status", {**current, "status": _status(number)})

    async def _post(self, api: str, plural: str, manifest: dict[str, Any]) -> Any:
        return await self._plane.ask("POST", f"{api}/namespaces/{NAMESPACE}/{plural}", manifest)

    def _pod_name(self, number: int) -> str:
        workload, ordinal = divmod(number, self._per_workload)
        return f"{_workload_name(workload)}-{ordinal}"

    def _stateful_set(self, number: int) -> dict[str, Any]:
        labels = {"app": _workload_name(number)}
        template = {"metadata": {"labels": labels, "annotations": _ANNOTATIONS}, "spec": {"containers": [_APPLICATION]}}
        spec = {
            "replicas": self._per_workload,
            "serviceName": "x",
            "selector": {"matchLabels": labels},
            "template": template,
        }
        metadata = {"name": _workload_name(number)}
        return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec}

    def _pod(self, number: int) -> dict[str, Any]:
        workload = number // self._per_workload
        owner = {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "name": _workload_name(workload),
            "uid": self._owners[workload],
            "controller": True,
        }
        arguments = [
            f"--app-id={APP_ID}",
            f"--dapr-public-port={self._replay.port}",
            f"--metrics-port={self._replay.port}",
            "--enable-metrics",
        ]
        daprd = {"name": "daprd", "image": "daprd", "args": arguments}
        metadata = {
            "name": self._pod_name(number),
            "labels": {"app": _workload_name(workload), "dapr.io/sidecar-injected": "true"},
            "annotations": _ANNOTATIONS,
            "ownerReferences": [owner],
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": {"containers": [_APPLICATION, daprd]},
        }


_ANNOTATIONS: Final = {"dapr.io/enabled": "true", "dapr.io/app-id": APP_ID}
_APPLICATION: Final = {"name": "application", "image": "application"}


def _workload_name(number: int) -> str:
    return f"orders-{number}"


def _status(number: int) -> dict[str, Any]:
    running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    statuses = [
        {"name": name, "image": name, "imageID": name, "containerID": f"containerd://{name}-{number}", "ready": True}
        | {"restartCount": 0, "started": True, "state": running}
        for name in ("application", "daprd")
    ]
    conditions = [{"type": "Ready", "status": "True"}]
    ip = address(number)
    return {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": conditions} | {
        "containerStatuses": statuses
    }
