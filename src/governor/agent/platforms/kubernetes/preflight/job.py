"""The Job of a throw-away pod: as alike as possible to a pod of the group, without its application. Pure.

Dapr's injector adds the sidecar, which it does only for pods that a known controller creates. The Job is suspended
until the copies exist. Its own container ends at once and is never ready, so no Service sends requests to the pod.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from governor.agent.platforms.kubernetes.workloads.views import PREFLIGHT, is_true
from governor.kube.objects import Object

_MAX_LIFE_S: Final = 240
"""After this time Kubernetes ends the pod, if the agent does not."""

_PREFIX: Final = "dapr.io/"
_DROPPED: Final = ("dapr.io/app-", "dapr.io/enable-app-health-check", "dapr.io/unix-domain-socket-path")
"""Prefixes of annotations that concern the application."""
_FIXED: Final = {
    "dapr.io/enabled": "true",
    "dapr.io/enable-native-sidecar": "false",
    "dapr.io/enable-debug": "false",
    "dapr.io/placement-host-address": "",
    "dapr.io/scheduler-host-address": "",
    "dapr.io/graceful-shutdown-seconds": "1",
}
_MEMORY_LIMIT: Final = "dapr.io/sidecar-memory-limit"
_DEFAULT_MEMORY: Final = "512Mi"
_MOUNTS: Final = ("dapr.io/volume-mounts", "dapr.io/volume-mounts-rw")
_PLUGGABLE: Final = "dapr.io/pluggable-components"
_INJECT_PLUGGABLE: Final = "dapr.io/inject-pluggable-components"
_CARRIED_FIELDS: Final = (
    "automountServiceAccountToken",
    "dnsConfig",
    "dnsPolicy",
    "hostAliases",
    "imagePullSecrets",
    "nodeSelector",
    "securityContext",
    "serviceAccountName",
    "tolerations",
)
_CONTAINER: Final[Mapping[str, Any]] = {
    "name": "preflight",
    "command": ["/daprd", "--version"],
    "readinessProbe": {"tcpSocket": {"port": 1}, "periodSeconds": 3600},
    "resources": {"requests": {"cpu": "1m", "memory": "16Mi"}, "limits": {"cpu": "500m", "memory": "128Mi"}},
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
}


def obstacle(pod: Object) -> str:
    """Return why a throw-away pod cannot be like this pod, or ``""``."""
    annotations = pod["metadata"].get("annotations") or {}
    if annotations.get(_PLUGGABLE) or is_true(annotations.get(_INJECT_PLUGGABLE, "")):
        return "its pods run pluggable components in containers of their own"
    claimed = [each["name"] for each in _volumes(pod) if "persistentVolumeClaim" in each or "ephemeral" in each]
    return f"its sidecars mount the volume {claimed[0]!r} of a PersistentVolumeClaim" if claimed else ""


def job(
    pod: Object, app_id: str, runtime: str, *, configuration: str, image: str, labels: Iterable[str] = ()
) -> Object:
    """Return a suspended Job whose pod gets a sidecar like that of a pod.

    ``image`` is that of the sidecar; if it is empty, Dapr's injector chooses it. ``labels`` are copied from the pod.
    """
    own = {name: text for name, text in (pod["metadata"].get("labels") or {}).items() if name in set(labels)}
    metadata = {
        "labels": {**own, PREFLIGHT: runtime},
        "annotations": _annotations(pod, app_id, configuration, image),
    }
    template = {"metadata": metadata, "spec": _pod_spec(pod)}
    spec = {
        "suspend": True,
        "backoffLimit": 0,
        "activeDeadlineSeconds": _MAX_LIFE_S,
        "ttlSecondsAfterFinished": 60,
        "template": template,
    }
    named = {"name": app_id, "namespace": pod["metadata"]["namespace"], "labels": {PREFLIGHT: runtime}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": named, "spec": spec}


def _annotations(pod: Object, app_id: str, configuration: str, image: str) -> dict[str, str]:
    found: Mapping[str, str] = pod["metadata"].get("annotations") or {}
    carried = {name: text for name, text in found.items() if name.startswith(_PREFIX) and not name.startswith(_DROPPED)}
    carried.pop("dapr.io/sidecar-image", None)
    pinned = {"dapr.io/sidecar-image": image} if image else {}
    own = {"dapr.io/app-id": app_id, "dapr.io/config": configuration}
    return {_MEMORY_LIMIT: _DEFAULT_MEMORY, **carried, **_FIXED, **pinned, **own}


def _pod_spec(pod: Object) -> Object:
    spec = pod["spec"]
    container = {**_CONTAINER, "image": _daprd_image(spec)}
    carried = {name: spec[name] for name in _CARRIED_FIELDS if name in spec}
    return {
        **carried,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "enableServiceLinks": False,
        "containers": [container],
        "volumes": _volumes(pod),
    }


def _daprd_image(spec: Object) -> str:
    containers = (*spec["containers"], *(spec.get("initContainers") or ()))
    return next(str(each["image"]) for each in containers if each["name"] == "daprd")


def _volumes(pod: Object) -> list[Object]:
    """Return the volumes that annotations mount into the sidecar."""
    annotations = pod["metadata"].get("annotations") or {}
    mounts = (mount for name in _MOUNTS for mount in annotations.get(name, "").split(","))
    names = {mount.partition(":")[0].strip() for mount in mounts}
    return [each for each in pod["spec"].get("volumes") or () if each["name"] in names]
