"""Bundles and deliveries: what one runtime gets, compiled from the documents that concern it.

Compiling is pure. Sealed leaves stay sealed in a bundle; the server opens them only while it sends.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from governor.domain import variables
from governor.domain.documents import ApplyPolicy, Profile, ResourceRef, Runtime, resource_ref
from governor.domain.layering import Conflict, Folded, Layer, fold
from governor.errors import Detail, GovernorError, Kind, invalid
from governor.values import paths
from governor.values.digest import digest
from governor.values.trees import Manifest, named_path


class Bundle(msgspec.Struct, frozen=True):
    """The compiled resources of one runtime, in the order of their references. The digest covers nothing else."""

    digest: str
    resources: tuple[Manifest, ...]
    apply: ApplyPolicy


class Delivery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """One bundle on its way to one runtime; (runtime, sequence) never changes its content."""

    runtime: str
    sequence: int
    attempt: int
    revision: int
    digest: str
    resources: tuple[dict[str, Any], ...]
    removals: tuple[ResourceRef, ...]
    apply: ApplyPolicy
    format: Literal[1] = 1


def refs(resources: Iterable[Manifest]) -> tuple[ResourceRef, ...]:
    """The references of compiled resources; all of them carry their namespace."""
    return tuple(resource_ref(manifest, "") for manifest in resources)


def compile_bundle(runtime: Runtime, layers: Sequence[Layer]) -> tuple[Bundle, Folded]:
    """Fold the layers that select this runtime and fill in its variables; refuses conflicts and unknown names."""
    name, labels = runtime.metadata.name, runtime.metadata.labels
    chosen = [layer for layer in layers if layer.profile.spec.selector.matches(name, labels)]
    folded = fold(chosen, runtime.spec.namespaces[0])
    profiles = {layer.name: layer.profile for layer in chosen}
    if folded.conflicts:
        raise GovernorError(
            Kind.CONFLICT,
            "layers-conflict",
            f"profiles of equal priority disagree for runtime {name!r}",
            [_conflict_detail(conflict, profiles) for conflict in folded.conflicts],
        )
    resources = _fill(folded, runtime, profiles)
    _check_namespaces(folded, runtime, profiles)
    apply = msgspec.convert(folded.apply, ApplyPolicy)
    return Bundle(digest(list(resources)), resources, apply), folded


def place_in_profile(profile: Profile, resource: ResourceRef, path: paths.Path) -> str:
    """Where a profile wrote a place of a resource, as a path from the document's root."""
    for index, manifest in enumerate(profile.spec.resources):
        if resource_ref(manifest, resource.namespace) == resource:
            return paths.render(("spec", "resources", index, *path))
    for index, removal in enumerate(profile.spec.removals):
        if ResourceRef(removal.kind, removal.namespace or resource.namespace, removal.name) == resource:
            return paths.render(("spec", "removals", index))
    return "spec"


def detail_in_profile(
    folded: Folded, resource: ResourceRef, path: paths.Path, reason: str, profiles: Mapping[str, Profile]
) -> Detail:
    """A problem of a compiled resource, told at the place in the profile that decided it."""
    # A list item stands at another position in each profile; only its name is the same.
    named = named_path(folded.resources[resource], path)
    profile = profiles[folded.origin(resource, named)]
    return Detail(
        reason=f"{resource}: {reason}",
        document=f"Profile/{profile.metadata.name}",
        path=place_in_profile(profile, resource, named),
    )


def _fill(folded: Folded, runtime: Runtime, profiles: Mapping[str, Profile]) -> tuple[Manifest, ...]:
    name, labels = runtime.metadata.name, runtime.metadata.labels
    resources: list[Manifest] = []
    details: list[Detail] = []
    for ref, manifest in folded.resources.items():
        filled, problems = variables.evaluate(manifest, name, labels)
        resources.append(filled)
        details += [detail_in_profile(folded, ref, paths.parse(it.path), it.reason, profiles) for it in problems]
    if details:
        raise invalid("variable-unknown", f"a variable cannot be filled in for runtime {name!r}", details)
    return tuple(resources)


def _check_namespaces(folded: Folded, runtime: Runtime, profiles: Mapping[str, Profile]) -> None:
    allowed = runtime.spec.namespaces
    outside = [ref for ref in folded.resources if ref.namespace not in allowed]
    if outside:
        reason = f"runtime {runtime.metadata.name!r} has only the namespaces {', '.join(allowed)}"
        path = ("metadata", "namespace")
        details = [detail_in_profile(folded, ref, path, reason, profiles) for ref in outside]
        raise invalid("namespace-foreign", "a resource is outside of its runtime's namespaces", details)


def _conflict_detail(conflict: Conflict, profiles: Mapping[str, Profile]) -> Detail:
    first, second = conflict.profiles
    reason = (
        f"profiles {first!r} and {second!r} decide this differently at equal priority {conflict.priority}; "
        "give one of them a higher priority"
    )
    if conflict.resource is None:
        return Detail(reason=reason, document=f"Profile/{second}", path=paths.render(("spec", "apply", *conflict.path)))
    place = place_in_profile(profiles[second], conflict.resource, conflict.path)
    return Detail(reason=f"{conflict.resource}: {reason}", document=f"Profile/{second}", path=place)
