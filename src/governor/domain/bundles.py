"""Bundles and deliveries: the configuration of one runtime, compiled from the documents that select it.

Compiling is pure. Sealed values stay sealed in a bundle; the server unseals them only while it sends.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from governor.domain import variables
from governor.domain.documents import ApplyPolicy, Profile, ResourceRef, Runtime, WindowScope, resource_ref
from governor.domain.layering import Conflict, Folded, Layer, fold
from governor.domain.windows import Hold, Restraint, Window, active, hold_restraint, window_restraint
from governor.errors import Detail, GovernorError, Kind, invalid
from governor.values import paths
from governor.values.digest import digest
from governor.values.trees import Manifest, named_path


class Bundle(msgspec.Struct, frozen=True):
    """Compiled resources, ordered by reference, with their apply policy; the same for a whole class of runtimes.

    The digest covers only the resources.
    """

    digest: str
    resources: tuple[Manifest, ...]
    apply: ApplyPolicy
    profiles: tuple[str, ...] = ()
    """The names of the profiles that it was compiled from."""


class Delivery(msgspec.Struct, frozen=True):
    """One bundle for one runtime; a sequence is issued once in an incarnation of the store.

    A store that was restored from a backup may issue a sequence again. So ``incarnation`` changes when that is
    detected, and ``id`` is random; both are empty if a version without them issued the delivery. ``documents`` are the
    versions that the bundle was compiled from, by ``Kind/name``.
    """

    runtime: str
    sequence: int
    attempt: int
    revision: int
    digest: str
    resources: tuple[dict[str, Any], ...]
    removals: tuple[ResourceRef, ...]
    apply: ApplyPolicy
    incarnation: str = ""
    id: str = ""
    documents: dict[str, int] = {}
    windows: tuple[Window, ...] = ()
    hold: Hold | None = None

    def in_force(self, now: datetime) -> "Delivery":
        """Return the delivery without a hold that has expired."""
        return msgspec.structs.replace(self, hold=active(self.hold, now))

    def write_restraint(self, now: datetime) -> Restraint | None:
        """Return what keeps an agent from writing the delivery now, or None."""
        windows = self.windows if self.apply.windows is WindowScope.ALL else ()
        return hold_restraint(self.hold, now) or window_restraint(windows, now)

    def restart_restraint(self, now: datetime) -> Restraint | None:
        """Return what keeps an agent from restarting a running sidecar for the delivery now, or None."""
        return hold_restraint(self.hold, now) or window_restraint(self.windows, now)

    @property
    def position(self) -> "DeliveryPosition":
        """Return the position of this delivery."""
        return DeliveryPosition(self.incarnation, self.sequence, self.id)


class DeliveryPosition(msgspec.Struct, frozen=True):
    """The delivery that an agent holds, sent as Last-Event-ID to resume a watch. Sequence 0: none."""

    incarnation: str = ""
    sequence: int = 0
    id: str = ""

    def __str__(self) -> str:
        return f"{self.incarnation}.{self.sequence}.{self.id}" if self.id else str(self.sequence)


def refs(resources: Iterable[Manifest]) -> tuple[ResourceRef, ...]:
    """Return the references of compiled resources, all of which have a namespace."""
    return tuple(resource_ref(manifest, "") for manifest in resources)


class Recipe(msgspec.Struct, frozen=True):
    """The folded layers of all runtimes that the same profiles select and that have the same namespaces.

    Those of them with the same values of ``variables`` are a class: they share one bundle.
    """

    folded: Folded
    profiles: dict[str, Profile]
    variables: tuple[str, ...]

    def values(self, runtime: Runtime) -> tuple[str | None, ...]:
        """Return what distinguishes the class of a runtime from the others of this recipe."""
        name, labels = runtime.metadata.name, runtime.metadata.labels
        return tuple(variables.lookup(each, name, labels) for each in self.variables)

    def compile(self, runtime: Runtime) -> Bundle:
        """Return the bundle of the class of a runtime; reject unknown variables and foreign namespaces."""
        resources = _substitute_variables(self.folded, runtime, self.profiles)
        _check_namespaces(self.folded, runtime, self.profiles)
        apply = msgspec.convert(self.folded.apply, ApplyPolicy)
        return Bundle(digest(list(resources)), resources, apply, tuple(sorted(self.profiles)))


def fold_recipe(runtime: Runtime, selected: Sequence[Layer]) -> Recipe:
    """Fold the layers that select a runtime; reject conflicts."""
    name = runtime.metadata.name
    folded = fold(selected, runtime.spec.namespaces[0])
    profiles = {layer.name: layer.profile for layer in selected}
    if folded.conflicts:
        raise GovernorError(
            Kind.CONFLICT,
            "layers-conflict",
            f"profiles of equal priority conflict for runtime {name!r}",
            [_conflict_detail(conflict, profiles) for conflict in folded.conflicts],
        )
    used = variables.used_variables(list(folded.resources.values()))
    return Recipe(folded, profiles, tuple(sorted(used)))


def compile_bundle(runtime: Runtime, layers: Iterable[Layer]) -> tuple[Bundle, Folded]:
    """Compile the layers that select one runtime."""
    name, labels = runtime.metadata.name, runtime.metadata.labels
    recipe = fold_recipe(runtime, [each for each in layers if each.profile.spec.selector.matches(name, labels)])
    return recipe.compile(runtime), recipe.folded


def path_in_profile(profile: Profile, resource: ResourceRef, path: paths.Path) -> str:
    """Return the path of a resource's field inside a profile document."""
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
    """Return a detail on a compiled resource that points at the profile field that set it."""
    # Each profile may have the list item at another index; only its name is the same.
    named = named_path(folded.resources[resource], path)
    profile = profiles[folded.origin(resource, named)]
    return Detail(
        reason=f"{resource}: {reason}",
        document=f"Profile/{profile.metadata.name}",
        path=path_in_profile(profile, resource, named),
    )


def _substitute_variables(folded: Folded, runtime: Runtime, profiles: Mapping[str, Profile]) -> tuple[Manifest, ...]:
    name, labels = runtime.metadata.name, runtime.metadata.labels
    resources: list[Manifest] = []
    details: list[Detail] = []
    for ref, manifest in folded.resources.items():
        substituted, problems = variables.substitute(manifest, name, labels)
        resources.append(substituted)
        details += [detail_in_profile(folded, ref, paths.parse(it.path), it.reason, profiles) for it in problems]
    if details:
        raise invalid("variable-unknown", f"unknown variables in the configuration of runtime {name!r}", details)
    return tuple(resources)


def _check_namespaces(folded: Folded, runtime: Runtime, profiles: Mapping[str, Profile]) -> None:
    allowed = runtime.spec.namespaces
    outside = [ref for ref in folded.resources if ref.namespace not in allowed]
    if outside:
        reason = f"runtime {runtime.metadata.name!r} has only the namespaces {', '.join(allowed)}"
        path = ("metadata", "namespace")
        details = [detail_in_profile(folded, ref, path, reason, profiles) for ref in outside]
        message = f"a resource is outside the namespaces of runtime {runtime.metadata.name!r}"
        raise invalid("namespace-foreign", message, details)


def _conflict_detail(conflict: Conflict, profiles: Mapping[str, Profile]) -> Detail:
    first, second = conflict.profiles
    reason = (
        f"profiles {first!r} and {second!r} conflict at equal priority {conflict.priority}; "
        "give one of them a higher priority"
    )
    if conflict.resource is None:
        return Detail(reason=reason, document=f"Profile/{second}", path=paths.render(("spec", "apply", *conflict.path)))
    place = path_in_profile(profiles[second], conflict.resource, conflict.path)
    return Detail(reason=f"{conflict.resource}: {reason}", document=f"Profile/{second}", path=place)
