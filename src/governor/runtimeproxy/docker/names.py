"""Kubernetes' pods and containers in the names and labels that cri-dockerd gives to Docker's containers. Pure.

| | |
|---|---|
| name | ``k8s_CONTAINER_POD_NAMESPACE_UID_ATTEMPT``, and ``_SUFFIX`` if that name was taken |
| name of a sandbox | the same with ``POD`` as its container |
| label ``io.kubernetes.docker.type`` | ``podsandbox`` or ``container`` |
| label ``io.kubernetes.sandbox.id`` | of a container, the id of its sandbox |
| labels ``io.kubernetes.pod.*``, ``io.kubernetes.container.name`` | as kubelet sets them |
| labels with the prefix ``annotation.`` | annotations |

A container with neither such a name nor such labels is not Kubernetes' own: no hook concerns it.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from governor.wire.hooks.workload import PodIdentity

ANNOTATION_PREFIX: Final = "annotation."
TYPE: Final = "io.kubernetes.docker.type"
SANDBOX_ID: Final = "io.kubernetes.sandbox.id"
_LOG_PATH: Final = "io.kubernetes.container.logpath"
INTERNAL: Final = frozenset({TYPE, SANDBOX_ID, _LOG_PATH})
"""Labels of cri-dockerd's own; kubelet and the pod do not know them."""
_CONTAINER_NAME: Final = "io.kubernetes.container.name"
_POD_NAME: Final = "io.kubernetes.pod.name"
_POD_NAMESPACE: Final = "io.kubernetes.pod.namespace"
_POD_UID: Final = "io.kubernetes.pod.uid"
_RESTARTS: Final = "annotation.io.kubernetes.container.restartCount"
_PREFIX: Final = "k8s"
_OF_SANDBOX: Final = "POD"
_PARTS: Final = (6, 7)


class KubernetesName(msgspec.Struct, frozen=True):
    """Which of Kubernetes' containers it is."""

    container: str
    """Its name in the pod; empty for a sandbox."""
    attempt: int
    pod: PodIdentity
    """For a container without the attempt of its sandbox."""
    sandbox_id: str = ""
    """The id of a container's sandbox, if its labels have it."""

    @property
    def is_sandbox(self) -> bool:
        """Return whether it is a pod's sandbox."""
        return not self.container


def kubernetes_name(name: str, labels: Mapping[str, str]) -> KubernetesName | None:
    """Return which of Kubernetes' containers has this name and these labels, or None if it is not Kubernetes' own.

    The labels count where both say something.
    """
    parts = _parts(name)
    kind, named = labels.get(TYPE, ""), parts[0] if parts else ""
    is_sandbox = kind == "podsandbox" or (not kind and named == _OF_SANDBOX)
    container = labels.get(_CONTAINER_NAME) or named
    pod = PodIdentity(
        labels.get(_POD_NAME) or (parts[1] if parts else ""),
        labels.get(_POD_UID) or (parts[3] if parts else ""),
        labels.get(_POD_NAMESPACE) or (parts[2] if parts else ""),
    )
    attempt = _number(parts[4] if parts else labels.get(_RESTARTS, ""))
    if not pod.name or not (is_sandbox or container):
        return None
    if is_sandbox:
        return KubernetesName("", attempt, msgspec.structs.replace(pod, attempt=attempt))
    return KubernetesName(container, attempt, pod, labels.get(SANDBOX_ID, ""))


def _parts(name: str) -> list[str]:
    """Return the parts after the prefix of a name that cri-dockerd gives, or nothing."""
    prefix, *parts = name.removeprefix("/").split("_")
    is_given = prefix == _PREFIX and len(parts) + 1 in _PARTS and all(parts) and parts[4].isdecimal()
    return parts if is_given else []


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def pod_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that the pod has."""
    return {
        key: value for key, value in labels.items() if not key.startswith(ANNOTATION_PREFIX) and key not in INTERNAL
    }


def annotations(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations in labels."""
    return {
        key.removeprefix(ANNOTATION_PREFIX): value for key, value in labels.items() if key.startswith(ANNOTATION_PREFIX)
    }
