"""Kinds of Kubernetes itself that the reconciler reads or writes."""

from typing import Final

from governor.kube.objects import ApiResource

CONFIG_MAPS: Final = ApiResource("", "v1", "ConfigMap", "configmaps", namespaced=True)
NAMESPACES: Final = ApiResource("", "v1", "Namespace", "namespaces", namespaced=False)
SECRETS: Final = ApiResource("", "v1", "Secret", "secrets", namespaced=True)
CUSTOM_RESOURCE_DEFINITIONS: Final = ApiResource(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)
