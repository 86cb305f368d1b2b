"""Objects of a cluster with Dapr, as its API server returns them."""

from typing import Any

import msgspec

from governor.agent.platforms.kubernetes.workloads.views import CronJob, Job, Owner, PodView, Replicated
from governor.kube.objects import Object, ObjectRef, ref_of

NAMESPACE = "shop"
CREATED = "2026-08-01T10:00:00Z"
IMAGE = "docker.io/daprio/daprd:1.18.3"
VIEWS: dict[str, type[Owner]] = {
    "Deployment": Replicated,
    "StatefulSet": Replicated,
    "DaemonSet": Replicated,
    "ReplicaSet": Replicated,
    "Job": Job,
    "CronJob": CronJob,
}


def args(app_id: str, *more: str) -> list[str]:
    """Return the arguments that Dapr's injector gives to daprd, in its order."""
    return [
        *("/daprd", "--dapr-http-port", "3500", "--dapr-grpc-port", "50001", "--dapr-internal-grpc-port", "50002"),
        *("--dapr-listen-addresses", "[::1],127.0.0.1", "--dapr-public-port", "3501", "--app-id", app_id),
        *("--app-protocol", "http", "--log-level", "info", "--dapr-graceful-shutdown-seconds", "-1"),
        *("--mode", "kubernetes", "--enable-metrics", "--metrics-port", "9090", *more, "--enable-mtls"),
    ]


def owner(kind: str, name: str, api_version: str = "apps/v1") -> Object:
    """Return a reference to the controller of an object."""
    return {"apiVersion": api_version, "kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}


def daprd(arguments: list[str], **fields: Any) -> Object:
    return {"name": "daprd", "image": IMAGE, "args": arguments, **fields}


def pod(name: str, owned_by: Object | None = None, *, sidecar: Object | None = None, **metadata: Any) -> Object:
    """Return a pod; with a sidecar unless that is empty."""
    container = daprd(args("orders")) if sidecar is None else sidecar
    labels = {"dapr.io/sidecar-injected": "true"} if container else {}
    annotations = {"dapr.io/enabled": "true", **metadata.pop("annotations", {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{name}",
            "creationTimestamp": CREATED,
            "labels": {**labels, **metadata.pop("labels", {})},
            "annotations": annotations,
            "ownerReferences": [owned_by] if owned_by else [],
            **metadata,
        },
        "spec": {
            "containers": [{"name": "app", "image": "app", "args": ["--password=hidden"]}, *filter(None, [container])]
        },
    }


def status(**daprd_status: Any) -> Object:
    """Return the status of a running pod, with these fields of daprd's."""
    return {
        "phase": "Running",
        "podIP": "10.1.2.3",
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}],
        "containerStatuses": [
            {"name": "app", "ready": True, "restartCount": 7, "image": "app", "imageID": ""},
            {"name": "daprd", "ready": True, "restartCount": 0, "image": IMAGE, "imageID": "", **daprd_status},
        ],
    }


def workload(kind: str, name: str, owned_by: Object | None = None, *, enabled: str = "true", **spec: Any) -> Object:
    """Return an object of a kind that owns pods, whose template asks for a sidecar."""
    annotations = {"dapr.io/enabled": enabled, "dapr.io/app-id": name, **spec.pop("annotations", {})}
    pods: Object = {"containers": [{"name": "app", "image": "app"}]}
    if kind in ("Job", "CronJob"):
        pods["restartPolicy"] = "Never"
    labels = {"app": name}
    template = {"metadata": {"labels": labels, "annotations": annotations}, "spec": pods}
    metadata = {
        "name": name,
        "namespace": NAMESPACE,
        "uid": f"uid-{name}",
        "generation": 1,
        "ownerReferences": [owned_by] if owned_by else [],
    }
    specs: dict[str, Object] = {
        "CronJob": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": template}}},
        "Job": {"template": template},
    }
    described = specs.get(kind, {"selector": {"matchLabels": labels}, "template": template})
    group = "batch/v1" if kind in specs else "apps/v1"
    return {"apiVersion": group, "kind": kind, "metadata": metadata, "spec": {**described, **spec}}


def view(manifest: Object) -> PodView:
    return msgspec.json.decode(msgspec.json.encode(manifest), type=PodView)


def owners(*manifests: Object) -> dict[ObjectRef, Owner]:
    return {
        ref_of(each): msgspec.json.decode(msgspec.json.encode(each), type=VIEWS[each["kind"]]) for each in manifests
    }
