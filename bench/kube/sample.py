"""The objects of the benchmark."""

from typing import Any, Final

MANAGER: Final = "bench"
APPLIED: Final = "applied"
WATCHED: Final = "watched"
CACHED: Final = "cached"
"""The namespaces, by the operation on their objects."""
PAGE_SIZE: Final = 500
CONFIG_MAPS: Final = 100
"""Number of distinct ConfigMaps that apply and get use."""


def config_map_name(number: int) -> str:
    """Return the name of the ConfigMap for the given operation."""
    return f"settings-{number % CONFIG_MAPS}"


def config_map(namespace: str, number: int, text: str) -> dict[str, Any]:
    """Return a ConfigMap of about 1 kB; another ``text`` changes it."""
    settings = {f"setting-{key}": f"{key:03} of the settings of one application" for key in range(15)}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": config_map_name(number), "namespace": namespace, "labels": {"app": "bench"}},
        "data": {**settings, "text": text},
    }


def deployment(namespace: str, name: str, revision: int = 1, *, sidecar: bool = False) -> dict[str, Any]:
    """Return a Deployment of 4 kB, or 5 kB with a sidecar, as stored; another ``revision`` changes it."""
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "shop", "team": "orders"}
    containers = [_container("application", name, revision, 8080)]
    if sidecar:
        containers.append(_container("sidecar", name, revision, 3500))
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels,
            "annotations": {
                "example.com/revision": str(revision),
                "example.com/owner": "the team that owns the orders",
            },
        },
        "spec": {
            "replicas": 1 + revision % 5,
            "selector": {"matchLabels": {"app.kubernetes.io/name": name}},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
        },
    }


def deployment_status(revision: int = 1) -> dict[str, Any]:
    """Return the status that its controller writes once all replicas run."""
    replicas = 1 + revision % 5
    moment = "2026-01-01T00:00:00Z"
    conditions = [
        {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastUpdateTime": moment,
            "lastTransitionTime": moment,
        }
        for kind, reason, message in (
            ("Available", "MinimumReplicasAvailable", "Deployment has minimum availability."),
            ("Progressing", "NewReplicaSetAvailable", "The ReplicaSet has successfully progressed."),
        )
    ]
    counts = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    return {"observedGeneration": revision, "conditions": conditions, **dict.fromkeys(counts, replicas)}


def _container(role: str, name: str, revision: int, port: int) -> dict[str, Any]:
    return {
        "name": role,
        "image": f"images.example.com/{name}/{role}:1.{revision}",
        "args": ["--log-level=info", f"--port={port}"],
        "ports": [{"name": "http", "containerPort": port}],
        "env": [{"name": f"SETTING_{key}", "value": f"{role} {key}"} for key in range(3)],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 5},
    }
