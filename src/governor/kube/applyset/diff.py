"""What of an object counts when two states of it are compared, and what of it may be shown."""

from typing import Any, Final

from governor.kube.objects import Object
from governor.values.paths import Path
from governor.values.secret import Secret
from governor.values.treediff import Difference, diff
from governor.values.trees import Tree, map_leaves

_VOLATILE: Final = frozenset({"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink"})
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


def comparable(live: Object) -> Object:
    """The object without what the server keeps about it; what is secret in it is wrapped."""
    kept: Object = {key: value for key, value in live.items() if key not in {"metadata", "status"}}
    kept["metadata"] = {key: value for key, value in live["metadata"].items() if key not in _VOLATILE}
    return _wrapped(kept) if is_secret(live) else kept


def differences(live: Object, wanted: Object) -> tuple[Difference, ...]:
    """What turns one state of an object into another, masked."""
    return diff(comparable(live), comparable(wanted))


def is_secret(manifest: Object) -> bool:
    """Whether it is one of Kubernetes' own Secrets."""
    return (manifest.get("apiVersion"), manifest.get("kind")) == ("v1", "Secret")


def _wrapped(secret: Object) -> Object:
    return {
        key: map_leaves(value, _wrap) if key in {"data", "stringData"} else value for key, value in secret.items()
    } | {"metadata": _without_copy(secret["metadata"])}


def _wrap(_: Path, leaf: Tree) -> Tree:
    return Secret(str(leaf))


def _without_copy(metadata: dict[str, Any]) -> dict[str, Any]:
    """kubectl writes the whole Secret into an annotation once more."""
    annotations = metadata.get("annotations") or {}
    if _LAST_APPLIED not in annotations:
        return metadata
    return metadata | {"annotations": annotations | {_LAST_APPLIED: Secret(annotations[_LAST_APPLIED])}}
