"""Compilation of documents: which runtimes a change affects, their equivalence classes, and the bundle of each class.

Runtimes with the same matching profiles, the same namespaces and the same values of the variables used are a class; it
is compiled once. Errors name the place in the profile that causes them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TypeAlias

import msgspec

from governor.domain.bundles import Bundle, Recipe, detail_in_profile, fold_recipe
from governor.domain.dapr.validation import validate
from governor.domain.documents import DocumentRef, Profile, Runtime, Selector, read_document
from governor.domain.layering import Layer
from governor.domain.windows import active, hold_restraint
from governor.errors import Detail, invalid
from governor.server.changes.catalogue import PROFILE, RUNTIME, Catalogue
from governor.server.changes.error_list import ErrorList
from governor.values import paths
from governor.values.trees import Manifest

LoadLayers: TypeAlias = Callable[[Sequence[str]], Mapping[str, Layer]]
"""Reads the profiles of these names at the revision that is compiled."""

_RecipeKey: TypeAlias = tuple[tuple[tuple[str, str], ...], tuple[str, ...]]


def read_layer(tree: Manifest) -> Layer:
    """Decode a stored profile, which was validated when it was submitted."""
    document = read_document(tree)
    assert isinstance(document, Profile)  # noqa: S101 - selected by this kind
    return Layer(document, dict(tree["spec"].get("apply") or {}))


class Compiler:
    """Compiles classes and remembers the results, by the digests of the profiles that they were compiled from.

    A change is compiled before its transaction and again in it: there only what has changed meanwhile.
    """

    def __init__(self) -> None:
        self._layers: dict[tuple[str, str], Layer] = {}
        self._recipes: dict[_RecipeKey, Recipe] = {}
        self._bundles: dict[tuple[_RecipeKey, tuple[str | None, ...]], Bundle] = {}
        self.compilations = 0

    def compile(self, catalogue: Catalogue, names: Iterable[str], load: LoadLayers) -> dict[str, Bundle]:
        """Return the bundle of each named runtime, the same object for all of a class.

        Raise the conflicts, unknown variables and invalid resources of all classes.
        """
        run = _Run(self, catalogue, load)
        bundles = {name: bundle for name in names if (bundle := run.bundle_of(catalogue.runtimes[name])) is not None}
        run.errors.raise_if_any()
        return bundles

    def recipe(self, key: _RecipeKey, runtime: Runtime, load: LoadLayers) -> Recipe:
        """Return the recipe of a runtime with these profiles and namespaces."""
        found = self._recipes.get(key)
        if found is None:
            profiles, _ = key
            missing = [name for name, digest in profiles if (name, digest) not in self._layers]
            loaded = load(missing) if missing else {}
            self._layers |= {(name, digest): loaded[name] for name, digest in profiles if name in loaded}
            found = self._recipes[key] = fold_recipe(runtime, [self._layers[each] for each in profiles])
        return found

    def bundle(self, key: _RecipeKey, recipe: Recipe, runtime: Runtime) -> Bundle:
        """Return the bundle of a runtime's class."""
        of_class = key, recipe.values(runtime)
        found = self._bundles.get(of_class)
        if found is None:
            self.compilations += 1
            found = recipe.compile(runtime)
            _check_complete(runtime.metadata.name, found, recipe)
            self._bundles[of_class] = found
        return found


class _Run:
    """The compilation of one catalogue. A class that does not compile is reported once."""

    def __init__(self, compiler: Compiler, catalogue: Catalogue, load: LoadLayers) -> None:
        self._compiler = compiler
        self._catalogue = catalogue
        self._load = load
        self._recipes: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[_RecipeKey, Recipe] | None] = {}
        self._bundles: dict[tuple[_RecipeKey, tuple[str | None, ...]], Bundle | None] = {}
        self.errors = ErrorList()

    def bundle_of(self, runtime: Runtime) -> Bundle | None:
        key = self._catalogue.profiles_of(runtime), runtime.spec.namespaces
        if key not in self._recipes:
            self._recipes[key] = None
            with self.errors.collect():
                self._recipes[key] = self._recipe(key, runtime)
        known = self._recipes[key]
        if known is None:
            return None
        of_class = known[0], known[1].values(runtime)
        if of_class not in self._bundles:
            self._bundles[of_class] = None
            with self.errors.collect():
                self._bundles[of_class] = self._compiler.bundle(*known, runtime)
        return self._bundles[of_class]

    def _recipe(self, key: tuple[tuple[str, ...], tuple[str, ...]], runtime: Runtime) -> tuple[_RecipeKey, Recipe]:
        names, namespaces = key
        entries = self._catalogue.entries
        whole = tuple((name, entries[DocumentRef(PROFILE, name)].digest) for name in sorted(names)), namespaces
        return whole, self._compiler.recipe(whole, runtime, self._load)


def compile_affected(
    compiler: Compiler, before: Catalogue, after: Catalogue, touched: Iterable[DocumentRef], load: LoadLayers
) -> dict[str, Bundle]:
    """Return the bundle of each affected runtime, or raise everything that does not compile."""
    errors, given = ErrorList(), list(touched)
    bundles: dict[str, Bundle] = {}
    with errors.collect():
        check_selectors(after, given)
    with errors.collect():
        bundles = compiler.compile(after, affected_runtimes(before, after, given), load)
    errors.raise_if_any()
    return bundles


def check_selectors(after: Catalogue, touched: Iterable[DocumentRef]) -> None:
    """Raise if a profile names a runtime that does not exist, or no longer."""
    given = list(touched)
    profiles = {ref.name for ref in given if ref.kind == PROFILE and ref.name in after.selectors}
    profiles |= {name for ref in given if ref.kind == RUNTIME for name in after.placed.get(ref.name, ())}
    problems = [
        Detail(
            reason=f"unknown runtime {runtime!r}; apply its Runtime document first or together",
            document=f"Profile/{name}",
            path="spec.selector.runtime",
        )
        for name in sorted(profiles)
        if (runtime := after.selectors[name].runtime) is not None and runtime not in after.runtimes
    ]
    if problems:
        raise invalid("runtime-unknown", "a profile names a runtime that does not exist", problems)


def affected_runtimes(before: Catalogue, after: Catalogue, touched: Iterable[DocumentRef]) -> list[str]:
    """Return the remaining runtimes that were touched themselves, or that a touched profile selects or selected."""
    affected: set[str] = set()
    selectors: dict[bytes, Selector] = {}
    for ref in touched:
        if ref.kind == RUNTIME:
            affected.add(ref.name)
        else:
            found = (each.selectors.get(ref.name) for each in (before, after))
            selectors |= {msgspec.json.encode(each): each for each in found if each is not None}
    for selector in selectors.values():
        affected |= after.selected_by(selector)
    return sorted(affected & after.runtimes.keys())


def _check_complete(runtime: str, bundle: Bundle, recipe: Recipe) -> None:
    """Raise if a resource is incomplete after folding; a single layer may be partial."""
    problems = [
        detail_in_profile(recipe.folded, ref, paths.parse(problem.path), problem.reason, recipe.profiles)
        for ref, manifest in zip(recipe.folded.resources, bundle.resources, strict=True)
        for problem in validate(manifest, partial=False)
    ]
    if problems:
        raise invalid(
            "resource-invalid", f"a resource for runtime {runtime!r} is not valid once its layers are folded", problems
        )


def unused_profiles(after: Catalogue, touched: Iterable[DocumentRef]) -> list[str]:
    """Return a warning for each touched profile that selects no runtime."""
    return [
        f"profile {ref.name!r} selects no runtime"
        for ref in sorted(touched)
        if ref.kind == PROFILE and ref.name in after.selectors and not after.selected_by(after.selectors[ref.name])
    ]


def ended_holds(before: Catalogue, after: Catalogue, touched: Iterable[DocumentRef], now: datetime) -> list[str]:
    """Return a warning for each runtime that is held and no longer will be: a document may lack the hold by mistake."""
    held = {
        ref.name: hold_restraint(before.runtimes[ref.name].spec.hold, now)
        for ref in touched
        if ref.kind == RUNTIME and ref.name in before.runtimes and ref.name in after.runtimes
    }
    return [
        f"runtime {name!r} is no longer {restraint.message}"
        for name, restraint in sorted(held.items())
        if restraint is not None and not active(after.runtimes[name].spec.hold, now)
    ]
