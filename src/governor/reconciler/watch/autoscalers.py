"""Autoscalers and the workloads that they scale: the number of replicas of such a workload is not the module's."""

from typing import Final

import msgspec

from governor.kube.objects import ApiResource, ObjectRef, group_of
from governor.kube.reflector import View
from governor.reconciler.watch.kind_watch import KindName

HORIZONTAL_POD_AUTOSCALERS: Final = KindName("autoscaling", "HorizontalPodAutoscaler", "v2")
SCALED_OBJECTS: Final = KindName("keda.sh", "ScaledObject", "v1alpha1")

_APPS: Final = "apps/v1"


class _Target(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The workload; the defaults are those of KEDA."""

    api_version: str = _APPS
    kind: str = "Deployment"
    name: str = ""


class _Spec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    scale_target_ref: _Target = _Target()


class Autoscaler(View, frozen=True):
    """A HorizontalPodAutoscaler or ScaledObject."""

    spec: _Spec = _Spec()

    @property
    def target(self) -> ObjectRef:
        """The workload that it scales."""
        target = self.spec.scale_target_ref
        return ObjectRef(group_of(target.api_version), target.kind, self.metadata.namespace, target.name)


def is_scalable(resource: ApiResource) -> bool:
    """Return whether an autoscaler can scale objects of this kind."""
    return "scale" in resource.subresources
