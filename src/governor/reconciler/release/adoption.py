"""How the objects of another owner are recognised, and how that owner releases them afterwards. Pure."""

from collections.abc import Mapping
from typing import Final

import msgspec

from governor.kube.objects import ObjectRef
from governor.reconciler.kinds.adoption import Adoption, FluxKind, FluxObject
from governor.reconciler.kinds.module_instance import ModuleInstanceSpec, Operation

HELM: Final = "helm"
"""Field manager of Helm's command."""
_FLUX_MANAGERS: Final = {FluxKind.KUSTOMIZATION: "kustomize-controller", FluxKind.HELM_RELEASE: "helm-controller"}
_FLUX_LABELS: Final = {
    FluxKind.KUSTOMIZATION: "kustomize.toolkit.fluxcd.io",
    FluxKind.HELM_RELEASE: "helm.toolkit.fluxcd.io",
}
_SUSPENDED: Final = '{"spec":{"suspend":true}}'
_UNFINALIZED: Final = '{"metadata":{"finalizers":null}}'
_ARGOCD_MANAGERS: Final = frozenset({"argocd-controller", "argocd-application-controller"})
"""Roles and their bindings have the second one."""


class Release(msgspec.Struct, frozen=True):
    """Name and namespace of a Helm release."""

    name: str
    namespace: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class FormerOwner(msgspec.Struct, frozen=True):
    """The owner that a module takes its objects over from."""

    title: str
    """What it is called in messages."""
    managers: frozenset[str]
    marks: tuple[Mapping[str, str], ...]
    """Labels and annotations of its objects, alternatively."""
    next_step: str
    """How it releases the objects without deleting them."""
    release: Release | None = None
    """The Helm release that it consists of, if any."""
    is_release_required: bool = False


class Takeover(msgspec.Struct, frozen=True):
    """An adoption that is under way."""

    owner: FormerOwner
    operation: Operation = Operation.INSTALL
    """What the former owner has done last, which a chart may ask for."""
    objects: tuple[ObjectRef, ...] = ()
    """What the former owner has, as far as known."""


def former_owner(spec: ModuleInstanceSpec) -> FormerOwner | None:
    """Return the owner that a module takes its objects over from, or None."""
    adoption = spec.adopt
    if adoption is None:
        return None
    if adoption.flux is not None:
        return _flux(adoption.flux, Release(spec.release_name, spec.namespace))
    return _argocd(adoption) if adoption.argocd is not None else _helm(adoption, spec)


def _helm(adoption: Adoption, spec: ModuleInstanceSpec) -> FormerOwner:
    given = adoption.helm_release
    assert given is not None  # noqa: S101 - the rule of the kind requires one owner
    release = Release(given.name or spec.release_name, given.namespace or spec.namespace)
    return FormerOwner(
        title=f"Helm release {release}",
        managers=frozenset({HELM}),
        marks=({"meta.helm.sh/release-name": release.name, "meta.helm.sh/release-namespace": release.namespace},),
        next_step=f"do not run helm uninstall; delete Helm's record of the release: {_forget(release)}",
        release=release,
        is_release_required=True,
    )


def _flux(owner: FluxObject, release: Release) -> FormerOwner:
    prefix, plural = _FLUX_LABELS[owner.kind], f"{owner.kind.lower()}s.{_FLUX_LABELS[owner.kind]}"
    patch = (
        f'kubectl -n {owner.namespace} patch {plural} {owner.name} --type=merge -p \'{{"spec":{{"suspend":true}}}}\''
    )
    steps = [patch, f"kubectl -n {owner.namespace} delete {plural} {owner.name}"]
    is_helm = owner.kind is FluxKind.HELM_RELEASE
    return FormerOwner(
        title=f"Flux {owner.kind} {owner.namespace}/{owner.name}",
        managers=frozenset({_FLUX_MANAGERS[owner.kind]}),
        marks=({f"{prefix}/name": owner.name, f"{prefix}/namespace": owner.namespace},),
        next_step=(
            "remove it from Flux's source; suspended, it is deleted without its objects: "
            + "; ".join([*steps, _forget(release)] if is_helm else steps)
        ),
        release=release if is_helm else None,
    )


def _argocd(adoption: Adoption) -> FormerOwner:
    owner = adoption.argocd
    assert owner is not None  # noqa: S101 - checked by the caller
    step = f"kubectl -n {owner.namespace} patch applications.argoproj.io {owner.name} --type=merge"
    return FormerOwner(
        title=f"Argo CD Application {owner.namespace}/{owner.name}",
        managers=_ARGOCD_MANAGERS,
        marks=(
            {"argocd.argoproj.io/tracking-id": f"{owner.name}:*"},
            {"argocd.argoproj.io/tracking-id": f"{owner.namespace}_{owner.name}:*"},
            {"argocd.argoproj.io/instance": owner.name},
            {"app.kubernetes.io/instance": owner.name},
        ),
        next_step=(
            "remove it from its source; without finalizers, it is deleted without its objects: "
            f'{step} -p \'{{"metadata":{{"finalizers":null}}}}\'; '
            f"kubectl -n {owner.namespace} delete applications.argoproj.io {owner.name}"
        ),
    )


def _forget(release: Release) -> str:
    return f"kubectl -n {release.namespace} delete secrets -l owner=helm,name={release.name}"
