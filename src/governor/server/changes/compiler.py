"""Which runtimes a change concerns and what each of them gets; a problem is told at its place in a profile. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from governor.domain.bundles import Bundle, compile_bundle, detail_in_profile
from governor.domain.dapr.validation import validate
from governor.domain.documents import DocumentRef, Profile, Runtime, read_document
from governor.domain.layering import Folded, Layer
from governor.errors import Detail, invalid
from governor.server.changes.problems import Refusals
from governor.values import paths
from governor.values.trees import Manifest


class Documents(msgspec.Struct, frozen=True):
    """All documents of one moment, read."""

    runtimes: dict[str, Runtime]
    layers: dict[str, Layer]

    @property
    def profiles(self) -> dict[str, Profile]:
        """The profiles by name."""
        return {name: layer.profile for name, layer in self.layers.items()}


def read_documents(trees: Iterable[Manifest]) -> Documents:
    """Read stored trees; they were checked on their way in."""
    documents = Documents({}, {})
    for tree in trees:
        document = read_document(tree)
        if isinstance(document, Runtime):
            documents.runtimes[document.metadata.name] = document
        else:
            documents.layers[document.metadata.name] = Layer(document, _apply_as_written(tree))
    return documents


def _apply_as_written(tree: Manifest) -> dict[str, Any]:
    return dict(tree["spec"].get("apply") or {})


def concerned(before: Documents, after: Documents, touched: Iterable[DocumentRef]) -> list[str]:
    """The runtimes that exist afterwards and that a touched document is, or selects, or has selected."""
    names = set(touched)
    selectors = [
        profiles[ref.name].spec.selector
        for profiles in (before.profiles, after.profiles)
        for ref in names
        if ref.kind == "Profile" and ref.name in profiles
    ]
    return sorted(
        name
        for name, runtime in after.runtimes.items()
        if DocumentRef("Runtime", name) in names
        or any(selector.matches(name, runtime.metadata.labels) for selector in selectors)
    )


def compile_runtimes(documents: Documents, names: Iterable[str]) -> dict[str, Bundle]:
    """The bundle of each of these runtimes; refuses conflicts, unknown variables and incomplete resources of any."""
    refusals = Refusals()
    bundles: dict[str, Bundle] = {}
    layers, profiles = list(documents.layers.values()), documents.profiles
    for name in names:
        with refusals.collecting():
            bundle, folded = compile_bundle(documents.runtimes[name], layers)
            _check_whole(name, bundle, folded, profiles)
            bundles[name] = bundle
    refusals.refuse_if_any()
    return bundles


def _check_whole(runtime: str, bundle: Bundle, folded: Folded, profiles: Mapping[str, Profile]) -> None:
    """Layers may be partial; what they add up to may not."""
    problems = [
        detail_in_profile(folded, ref, paths.parse(problem.path), problem.reason, profiles)
        for ref, manifest in zip(folded.resources, bundle.resources, strict=True)
        for problem in validate(manifest, partial=False)
    ]
    if problems:
        raise invalid(
            "resource-invalid", f"a resource for runtime {runtime!r} is not valid once its layers are folded", problems
        )


def check_selectors(after: Documents) -> None:
    """Refuse profiles that name a runtime which does not exist."""
    problems = [
        Detail(
            reason=f"unknown runtime {profile.spec.selector.runtime!r}; put its Runtime document first or with it",
            document=f"Profile/{profile.metadata.name}",
            path="spec.selector.runtime",
        )
        for profile in after.profiles.values()
        if profile.spec.selector.runtime is not None and profile.spec.selector.runtime not in after.runtimes
    ]
    if problems:
        raise invalid("runtime-unknown", "a profile names a runtime that does not exist", problems)


def idle_profiles(after: Documents, touched: Iterable[DocumentRef]) -> list[str]:
    """Warnings about touched profiles that select no runtime at all."""
    profiles = after.profiles
    return [
        f"profile {ref.name!r} selects no runtime"
        for ref in sorted(touched)
        if ref.kind == "Profile" and ref.name in profiles and not _selected(profiles[ref.name], after)
    ]


def _selected(profile: Profile, documents: Documents) -> bool:
    selector = profile.spec.selector
    return any(selector.matches(name, runtime.metadata.labels) for name, runtime in documents.runtimes.items())
