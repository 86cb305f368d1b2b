"""Adoption: from which other owner a module takes its objects over."""

import enum
from typing import Annotated

from governor.reconciler.kinds.definition import (
    NamespaceName,
    ObjectName,
    Part,
    ReleaseName,
    Time,
    exactly_one_rule,
    validated,
)


class HelmRelease(Part, frozen=True):
    """A release that Helm has installed, such as by helm install."""

    name: ReleaseName = ""
    """Name of the release; by default the module's release name."""
    namespace: NamespaceName = ""
    """Namespace of the release; by default that of the module's objects."""


class FluxKind(enum.StrEnum):
    """The kinds of Flux that own objects."""

    KUSTOMIZATION = "Kustomization"
    HELM_RELEASE = "HelmRelease"


class FluxObject(Part, frozen=True):
    """The object of Flux that owns the module's objects."""

    kind: FluxKind
    """Its kind."""
    name: ObjectName
    """Its name."""
    namespace: NamespaceName
    """Its namespace."""


class ArgoApplication(Part, frozen=True):
    """The Application of Argo CD that owns the module's objects."""

    name: ObjectName
    """Name of the Application."""
    namespace: NamespaceName = "argocd"
    """Namespace of the Application."""


class Adoption(Part, frozen=True):
    """The other owner of objects that exist already. They are taken over in place by the first change of the module."""

    helm_release: HelmRelease | None = None
    """A release of Helm."""
    flux: FluxObject | None = None
    """An object of Flux."""
    argocd: ArgoApplication | None = None
    """An Application of Argo CD."""
    allow_changes: bool = False
    """Take the objects over even if the chart renders them differently, and create those that are missing. Otherwise
    nothing is written until values and version fit."""


AdoptionField = Annotated[Adoption, validated(exactly_one_rule("helmRelease", "flux", "argocd"))]


class Adopted(Part, frozen=True):
    """Objects that were taken over from another owner."""

    source: str
    """The former owner."""
    time: Time
    """When it was complete."""
    next_step: str
    """How to release the objects from the former owner."""
