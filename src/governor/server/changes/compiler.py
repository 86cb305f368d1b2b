"""Compilation of documents: which runtimes a change affects and the bundle of each.

Pure. Errors name the place in the profile that causes them.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from governor.domain.bundles import Bundle, compile_bundle, detail_in_profile
from governor.domain.dapr.validation import validate
from governor.domain.documents import DocumentRef, Profile, Runtime, read_document
from governor.domain.layering import Folded, Layer
from governor.domain.windows import active, hold_restraint
from governor.errors import Detail, invalid
from governor.server.changes.error_list import ErrorList
from governor.values import paths
from governor.values.trees import Manifest


class Documents(msgspec.Struct, frozen=True):
    """All existing documents at one revision, decoded."""

    runtimes: dict[str, Runtime]
    layers: dict[str, Layer]

    @property
    def profiles(self) -> dict[str, Profile]:
        """Return the profiles by name."""
        return {name: layer.profile for name, layer in self.layers.items()}


def read_documents(trees: Iterable[Manifest]) -> Documents:
    """Decode stored trees, which were validated when they were submitted."""
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


def compile_affected(before: Documents, after: Documents, touched: Iterable[DocumentRef]) -> dict[str, Bundle]:
    """Return the bundle of each affected runtime, or raise everything that does not compile."""
    errors = ErrorList()
    bundles: dict[str, Bundle] = {}
    with errors.collect():
        check_selectors(after)
    with errors.collect():
        bundles = compile_runtimes(after, affected_runtimes(before, after, touched))
    errors.raise_if_any()
    return bundles


def check_selectors(after: Documents) -> None:
    """Raise if a profile names a runtime that does not exist."""
    problems = [
        Detail(
            reason=f"unknown runtime {profile.spec.selector.runtime!r}; apply its Runtime document first or together",
            document=f"Profile/{profile.metadata.name}",
            path="spec.selector.runtime",
        )
        for profile in after.profiles.values()
        if profile.spec.selector.runtime is not None and profile.spec.selector.runtime not in after.runtimes
    ]
    if problems:
        raise invalid("runtime-unknown", "a profile names a runtime that does not exist", problems)


def affected_runtimes(before: Documents, after: Documents, touched: Iterable[DocumentRef]) -> list[str]:
    """Return the remaining runtimes that were touched themselves, or that a touched profile selects or selected."""
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
    """Return the bundle of each named runtime; raise the conflicts, unknown variables and invalid resources of all."""
    errors = ErrorList()
    bundles: dict[str, Bundle] = {}
    layers, profiles = list(documents.layers.values()), documents.profiles
    for name in names:
        with errors.collect():
            bundle, folded = compile_bundle(documents.runtimes[name], layers)
            _check_complete(name, bundle, folded, profiles)
            bundles[name] = bundle
    errors.raise_if_any()
    return bundles


def _check_complete(runtime: str, bundle: Bundle, folded: Folded, profiles: Mapping[str, Profile]) -> None:
    """Raise if a resource is incomplete after folding; a single layer may be partial."""
    problems = [
        detail_in_profile(folded, ref, paths.parse(problem.path), problem.reason, profiles)
        for ref, manifest in zip(folded.resources, bundle.resources, strict=True)
        for problem in validate(manifest, partial=False)
    ]
    if problems:
        raise invalid(
            "resource-invalid", f"a resource for runtime {runtime!r} is not valid once its layers are folded", problems
        )


def unused_profiles(after: Documents, touched: Iterable[DocumentRef]) -> list[str]:
    """Return a warning for each touched profile that selects no runtime."""
    profiles = after.profiles
    return [
        f"profile {ref.name!r} selects no runtime"
        for ref in sorted(touched)
        if ref.kind == "Profile" and ref.name in profiles and not _selects_any(profiles[ref.name], after)
    ]


def ended_holds(before: Documents, after: Documents, now: datetime) -> list[str]:
    """Return a warning for each runtime that is held and no longer will be: a document may lack the hold by mistake."""
    restraints = {name: hold_restraint(each.spec.hold, now) for name, each in before.runtimes.items()}
    return [
        f"runtime {name!r} is no longer {restraint.message}"
        for name, restraint in sorted(restraints.items())
        if restraint is not None and name in after.runtimes and not active(after.runtimes[name].spec.hold, now)
    ]


def _selects_any(profile: Profile, documents: Documents) -> bool:
    selector = profile.spec.selector
    return any(selector.matches(name, runtime.metadata.labels) for name, runtime in documents.runtimes.items())
