"""The objects that are written, watched and held, and how they differ from each other."""

from typing import Any, Final

MANAGER: Final = "bench"
APPLIED: Final = "applied"
WATCHED: Final = "watched"
HELD: Final = "held"
"""The namespaces, by what is done with their objects."""
PAGE: Final = 500
CONFIG_MAPS: Final = 100
"""How many are applied and read in turn."""


def config_map_name(number: int) -> str:
    """The name of the one that a numbered act is about."""
    return f"settings-{number % CONFIG_MAPS}"


def config_map(namespace: str, number: int, text: str) -> dict[str, Any]:
    """About 1 kB of settings; another text is a change."""
    settings = {f"setting-{key}": f"{key:03} of the settings of one application" for key in range(15)}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": config_map_name(number), "namespace": namespace, "labels": {"app": "bench"}},
        "data": {**settings, "text": text},
    }


def deployment(namespace: str, name: str, revision: int = 1, *, sidecar: bool = False) -> dict[str, Any]:
    """What one team might have written, 4 kB with what the server adds or 5 kB; another revision is a change."""
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
    """What its controller would write once all replicas run."""
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
