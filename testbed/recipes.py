"""The servers that can be asked for by name."""

from collections.abc import Iterable
from pathlib import Path

from testbed import cache, debian
from testbed.daprd import DAPRD
from testbed.errors import TestbedError
from testbed.recipe import Recipe
from testbed.redis import REDIS

RECIPES = {recipe.name: recipe for recipe in (DAPRD, REDIS)}


def provide(names: Iterable[str]) -> dict[str, Path]:
    """The executable of each server named: found, cached, or built now.

    Debian packages are looked after first and together, so that whoever may not install them hears of all at once.
    """
    recipes = [_named(name) for name in names]
    found = {recipe.name: recipe.find() or _cached(recipe) for recipe in recipes}
    absent = [recipe for recipe in recipes if found[recipe.name] is None]
    debian.require(package for recipe in absent for package in recipe.packages)
    return {recipe.name: found[recipe.name] or cache.ensure(recipe) for recipe in recipes}


def _named(name: str) -> Recipe:
    if name not in RECIPES:
        raise TestbedError(f"no server is called {name!r}; known are {', '.join(RECIPES)}")
    return RECIPES[name]


def _cached(recipe: Recipe) -> Path | None:
    executable = cache.executable_of(recipe)
    return executable if executable.exists() else None
