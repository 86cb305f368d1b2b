"""Folding layers: order never matters, conflicts are found, the higher rank wins, every field has an origin."""

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.domain.documents import API_VERSION, Profile, ResourceRef, read_document
from governor.domain.layering import REMOVE, Conflict, Folded, Layer, fold
from governor.values.paths import Item, Path, render
from governor.values.secret import Sealed
from governor.values.trees import leaf_at, named_items, same

NAMESPACE = "default"
X = ResourceRef("Component", NAMESPACE, "x")
ALL: dict[str, Any] = {}
GROUP = {"matchLabels": {"region": "eu"}}
ONE = {"runtime": "r1"}


def layer(
    name: str,
    *specs: Any,
    selector: Any = ALL,
    priority: int = 0,
    removes: tuple[str, ...] = (),
    apply: dict[str, Any] | None = None,
) -> Layer:
    """Return a layer with one spec for each of the components x, y, z; None omits a component."""
    resources = [
        {"kind": "Component", "metadata": {"name": component}, "spec": spec}
        for component, spec in zip("xyz", specs, strict=False)
        if spec is not None
    ]
    removals = [{"kind": "Component", "name": component} for component in removes]
    spec = {"selector": selector, "priority": priority, "resources": resources, "removals": removals}
    document = read_document({"apiVersion": API_VERSION, "kind": "Profile", "metadata": {"name": name}, "spec": spec})
    assert isinstance(document, Profile)
    return Layer(document, apply or {})


def folded(*layers: Layer) -> Folded:
    return fold(layers, NAMESPACE)


def spec_of(*layers: Layer) -> Any:
    """Return the folded spec of component x."""
    result = folded(*layers)
    assert result.conflicts == ()
    return result.resources[X].get("spec")


# -- arbitrary layers ----------------------------------------------------------------------------------------------

KEYS = st.sampled_from(["a", "b"])
ITEM_NAMES = st.sampled_from(["p", "q"])
atoms = st.sampled_from([None, 1, 2, "", True, Sealed("one", "mac"), Sealed("other", "mac"), [], [1], [{"v": 1}]])


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    set_item = st.builds(lambda name, value: {"name": name, "v": value}, ITEM_NAMES, inner)
    no_item = st.builds(lambda name: {"name": name, REMOVE: True}, ITEM_NAMES)
    items = st.lists(set_item | no_item, min_size=1, max_size=2, unique_by=lambda item: item["name"])
    return st.dictionaries(KEYS, inner, max_size=2) | items


patches = st.dictionaries(KEYS, st.recursive(atoms, containers, max_leaves=4), max_size=2)
NAMES = ["m", "n", "o", "p"]


@st.composite
def some_layers(draw: st.DrawFn) -> list[Layer]:
    """Generate up to four layers of few ranks on few components."""
    return [
        layer(
            name,
            draw(st.none() | patches),
            draw(st.none() | patches),
            selector=draw(st.sampled_from([ALL, GROUP, ONE])),
            priority=draw(st.integers(0, 1)),
            removes=draw(st.sampled_from([(), (), ("x",)])),
            apply=draw(st.dictionaries(st.sampled_from(["strategy", "unproven"]), st.sampled_from(["v", "w", None]))),
        )
        for name in NAMES[: draw(st.integers(1, 4))]
    ]


def distinct_ranks(layers: list[Layer]) -> list[Layer]:
    """Return the same layers in their order, each with a distinct rank."""
    ranked = []
    for priority, one in enumerate(sorted(layers, key=lambda each: (each.rank, each.name))):
        *specs, removes = _contents(one)
        ranked.append(layer(one.name, *specs, priority=priority, removes=removes, apply=one.apply))
    return ranked


def _contents(one: Layer) -> tuple[Any, Any, tuple[str, ...]]:
    specs = {manifest["metadata"]["name"]: manifest["spec"] for manifest in one.profile.spec.resources}
    return specs.get("x"), specs.get("y"), tuple(removal.name for removal in one.profile.spec.removals)


def unordered(tree: Any) -> Any:
    """Return a tree with its keys and named items in a canonical order."""
    if isinstance(tree, dict):
        return {key: unordered(tree[key]) for key in sorted(tree)}
    if isinstance(tree, list):
        return [unordered(item) for item in (sorted(tree, key=str) if named_items(tree) else tree)]
    return tree.mac if isinstance(tree, Sealed) else tree


def outcome(result: Folded) -> str:
    return repr(({ref: unordered(tree) for ref, tree in result.resources.items()}, unordered(result.apply)))


@given(some_layers(), st.randoms(use_true_random=False))
def test_the_order_of_the_layers_does_not_matter(layers: list[Layer], rng: Any) -> None:
    assert folded(*rng.sample(layers, len(layers))) == folded(*layers)


@given(st.none() | patches, st.none() | patches, st.none() | patches, st.booleans(), st.booleans())
def test_layers_of_one_rank_agree_only_if_their_order_does_not_matter(
    below: Any, one: Any, other: Any, one_removes: bool, other_removes: bool
) -> None:
    def fold_at(priority: int, other_priority: int, names: str = "mn") -> Folded:
        return folded(
            layer("low", below, priority=-9),
            layer(names[0], one, priority=priority, removes=("x",) * one_removes),
            layer(names[1], other, priority=other_priority, removes=("x",) * other_removes),
        )

    together = fold_at(0, 0)
    assert bool(together.conflicts) == bool(fold_at(0, 0, "nm").conflicts)
    if not together.conflicts:
        assert outcome(fold_at(0, 0, "nm")) == outcome(together)
        if not (one_removes and other_removes):
            assert outcome(fold_at(0, 1)) == outcome(fold_at(1, 0)) == outcome(together)


@given(some_layers())
def test_conflicts_do_not_depend_on_other_ranks(layers: list[Layer]) -> None:
    top = max(one.rank for one in layers)
    peers = [one for one in layers if one.rank == top]
    alone = {str(conflict) for conflict in folded(*peers).conflicts}
    assert alone == {str(c) for c in folded(*layers).conflicts if set(c.profiles) <= {one.name for one in peers}}


@given(patches, st.booleans())
def test_equal_layers_do_not_conflict(patch: Any, removes: bool) -> None:
    removed = ("x",) * removes
    twice = folded(layer("m", patch, removes=removed), layer("n", copy.deepcopy(patch), removes=removed))
    assert twice.conflicts == ()
    assert outcome(twice) == outcome(folded(layer("m", patch, removes=removed)))


@given(some_layers())
def test_folding_does_not_modify_the_layers(layers: list[Layer]) -> None:
    before = copy.deepcopy(layers)
    result = folded(*layers)
    untouched = copy.deepcopy(result)
    folded(*reversed(layers))
    assert layers == before
    assert result == untouched


def without_removals(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: without_removals(value) for key, value in tree.items() if value is not None}
    if isinstance(tree, list) and named_items(tree):
        return [without_removals(item) for item in tree if REMOVE not in item]
    return tree


@given(patches)
def test_a_single_layer_folds_to_its_contents_without_removals(patch: Any) -> None:
    result = folded(layer("m", patch))
    assert result.resources == {
        X: {"kind": "Component", "metadata": {"name": "x", "namespace": NAMESPACE}, "spec": without_removals(patch)}
    }


def places(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the fields that are set as a whole: scalars, ordinary lists and empty containers."""
    by_name = named_items(tree) if isinstance(tree, list) else None
    children = tree if isinstance(tree, dict) else by_name
    if not children:
        yield path, tree
        return
    for key, value in children.items():
        yield from places(value, (*path, key if isinstance(tree, dict) else Item(key)))


@given(some_layers())
def test_the_highest_layer_that_sets_a_field_is_its_origin(layers: list[Layer]) -> None:
    ranked = distinct_ranks(layers)
    result = folded(*ranked)
    for ref, tree in result.resources.items():
        for path, value in places({"spec": tree["spec"]}):
            values = [(one.name, leaf_at(manifest, path)) for one in ranked for manifest in manifests(one, ref)]
            expected_origin, expected = next((name, leaf) for name, leaf in reversed(values) if leaf is not None)
            origin = result.origins[ref][path].profile
            assert origin == result.origin(ref, path)
            if value in ({}, []):
                assert any(name == origin for name, _ in values)
            else:
                assert (origin, same(value, expected)) == (expected_origin, True), render(path)


@given(some_layers())
def test_a_field_has_an_origin_only_while_it_is_set_as_a_whole(layers: list[Layer]) -> None:
    assert_fields_are_set_once(folded(*distinct_ranks(layers)))


def assert_fields_are_set_once(result: Folded) -> None:
    for ref, origins in result.origins.items():
        leaves = dict(places(result.resources[ref]))
        for path in origins:
            assert path in leaves or leaf_at(result.resources[ref], path) is None
            above = [path[:length] for length in range(len(path)) if path[:length] in origins]
            assert all(leaves[place] in ({}, []) for place in above)


def manifests(one: Layer, ref: ResourceRef) -> list[Any]:
    return [each for each in one.profile.spec.resources if each["metadata"]["name"] == ref.name]


@given(some_layers())
def test_the_values_of_the_highest_layer_win(layers: list[Layer]) -> None:
    ranked = distinct_ranks(layers)
    result = folded(*ranked)
    for manifest in ranked[-1].profile.spec.resources:
        tree = result.resources[ResourceRef("Component", NAMESPACE, manifest["metadata"]["name"])]
        for path, value in places({"spec": without_removals(manifest["spec"])}):
            if value not in ({}, []):
                assert same(leaf_at(tree, path), value)


# -- rules in tables -----------------------------------------------------------------------------------------------

LISTED = [{"name": "p", "v": 1}]


@pytest.mark.parametrize(
    ("one", "other", "place"),
    [
        ({"a": 1}, {"a": 2}, "spec.a"),
        ({"a": 1}, {"a": 1.0}, "spec.a"),
        ({"a": 1}, {"a": True}, "spec.a"),
        ({"a": 1}, {"a": None}, "spec.a"),
        ({"a": {"b": 1}}, {"a": None}, "spec.a"),
        ({"a": {}}, {"a": None}, "spec.a"),
        ({"a": {"b": 1}}, {"a": 5}, "spec.a"),
        ({"a": {}}, {"a": 5}, "spec.a"),
        ({"a": {}}, {"a": []}, "spec.a"),
        ({"a": [1]}, {"a": [2]}, "spec.a"),
        ({"a": [1, 2]}, {"a": [2, 1]}, "spec.a"),
        ({"a": LISTED}, {"a": []}, "spec.a"),
        ({"a": LISTED}, {"a": [1]}, "spec.a"),
        ({"a": LISTED}, {"a": {"p": 1}}, "spec.a"),
        ({"a": LISTED}, {"a": [{"name": "p", "v": 2}]}, "spec.a[p].v"),
        ({"a": LISTED}, {"a": [{"name": "p", REMOVE: True}]}, "spec.a[p]"),
        ({"a": [{"name": "p"}]}, {"a": [{"name": "p", REMOVE: True}]}, "spec.a[p]"),
        ({"a": [{"name": "p", REMOVE: True}]}, {"a": []}, "spec.a"),
        ({"a": Sealed("box", "mac")}, {"a": Sealed("box", "other")}, "spec.a"),
        ({"a": Sealed("box", "mac")}, {"a": "plain"}, "spec.a"),
        ({"a": {"b": {"a": 1, "b": 1}}}, {"a": {"b": {"a": 2, "b": 1}}}, "spec.a.b.a"),
    ],
)
@pytest.mark.parametrize("below", [None, {}, {"a": 5}, {"a": {"b": 1, "c": 2}}, {"a": LISTED}, {"a": [1]}])
def test_layers_of_one_rank_conflict_regardless_of_lower_ranks(below: Any, one: Any, other: Any, place: str) -> None:
    for first, second in ((one, other), (other, one)):
        result = folded(layer("low", below, priority=-1), layer("m", first), layer("n", second))
        found = [(c.resource, render(c.path), c.profiles, c.priority) for c in result.conflicts]
        assert found == [(X, place, ("m", "n"), 0)]


@pytest.mark.parametrize(
    ("below", "one", "other", "together"),
    [
        ({}, {"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({}, {"a": 1}, {"a": 1}, {"a": 1}),
        ({"a": 1}, {"a": None}, {"a": None}, {}),
        ({"a": {"b": 1}}, {"a": {}}, {"a": {"c": 2}}, {"a": {"b": 1, "c": 2}}),
        ({}, {"a": {}}, {"a": {"c": 2}}, {"a": {"c": 2}}),
        ({"a": 5}, {"a": {"b": 1}}, {"a": {"c": 2}}, {"a": {"b": 1, "c": 2}}),
        ({"a": {"b": 1}}, {"a": {"b": None}}, {"a": {"c": 2}}, {"a": {"c": 2}}),
        ({"a": LISTED}, {"a": [{"name": "p", REMOVE: True}]}, {"a": [{"name": "q"}]}, {"a": [{"name": "q"}]}),
        ({}, {"a": [{"name": "p", REMOVE: True}]}, {"a": [{"name": "q"}]}, {"a": [{"name": "q"}]}),
        ({"a": [1]}, {"a": [{"name": "p"}]}, {"a": [{"name": "q"}]}, {"a": [{"name": "p"}, {"name": "q"}]}),
        (
            {"a": LISTED},
            {"a": [{"name": "p", "v": 2}]},
            {"a": [{"name": "p", "w": 3}]},
            {"a": [{"name": "p", "v": 2, "w": 3}]},
        ),
        ({}, {"a": Sealed("box", "mac")}, {"a": Sealed("sealed again", "mac")}, {"a": Sealed("box", "mac")}),
        ({}, {"a": [Sealed("box", "mac")]}, {"a": [Sealed("sealed again", "mac")]}, {"a": [Sealed("box", "mac")]}),
    ],
)
def test_layers_of_one_rank_without_conflict_merge(below: Any, one: Any, other: Any, together: Any) -> None:
    for first, second in ((one, other), (other, one)):
        spec = spec_of(layer("low", below, priority=-1), layer("m", first), layer("n", second))
        assert unordered(spec) == unordered(together)


@pytest.mark.parametrize(
    ("low", "high", "result"),
    [
        ({"a": 1, "b": 1}, {"a": 2}, {"a": 2, "b": 1}),
        ({"a": 1}, {"a": None}, {}),
        ({"a": 1}, {"b": None}, {"a": 1}),
        ({"a": {"b": 1}}, {"a": {}}, {"a": {"b": 1}}),
        ({"a": {"b": 1}}, {"a": {"b": None}}, {"a": {}}),
        ({"a": {"b": 1}}, {"a": 5}, {"a": 5}),
        ({"a": 5}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({"a": 5}, {"a": {}}, {"a": {}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": [1, 2]}, {"a": []}, {"a": []}),
        ({"a": [1, None]}, {}, {"a": [1, None]}),
        ({"a": []}, {"a": LISTED}, {"a": LISTED}),
        ({"a": LISTED}, {"a": []}, {"a": []}),
        ({"a": LISTED}, {"a": [{"name": "p", "v": 2}]}, {"a": [{"name": "p", "v": 2}]}),
        ({"a": LISTED}, {"a": [{"name": "p", "v": None}]}, {"a": [{"name": "p"}]}),
        ({"a": LISTED}, {"a": [{"name": "q"}]}, {"a": [{"name": "p", "v": 1}, {"name": "q"}]}),
        ({"a": LISTED}, {"a": [{"name": "p", REMOVE: True}]}, {"a": []}),
        ({"a": LISTED}, {"a": [{"name": "z", REMOVE: True}]}, {"a": LISTED}),
        ({"a": LISTED}, {"a": ["p"]}, {"a": ["p"]}),
        ({"a": LISTED}, {"a": {"p": 1}}, {"a": {"p": 1}}),
        ({"a": {"p": 1}}, {"a": LISTED}, {"a": LISTED}),
        ({"a": "low"}, {"a": ""}, {"a": ""}),
        ({"a": True}, {"a": False}, {"a": False}),
    ],
)
def test_a_higher_layer_merges_over_a_lower_one(low: Any, high: Any, result: Any) -> None:
    layers = layer("m", high, priority=1), layer("n", low)
    assert spec_of(*layers) == result
    assert_fields_are_set_once(folded(*layers))


def test_layers_are_ordered_by_specificity_and_then_by_priority() -> None:
    order = [
        layer("all", {"a": 0}, selector=ALL, priority=900),
        layer("all-higher", {"a": 1}, selector=ALL, priority=901),
        layer("group", {"a": 2}, selector=GROUP, priority=-5),
        layer("group-higher", {"a": 3}, selector=GROUP, priority=5),
        layer("one", {"a": 4}, selector=ONE, priority=-900),
        layer("one-higher", {"a": 5}, selector=ONE, priority=-899),
    ]
    for count in range(1, len(order) + 1):
        assert spec_of(*reversed(order[:count])) == {"a": count - 1}


def test_all_conflicting_pairs_are_reported() -> None:
    result = folded(*(layer(name, {"a": value}) for name, value in (("m", 1), ("n", 2), ("o", 3))))
    assert [conflict.profiles for conflict in result.conflicts] == [("m", "n"), ("m", "o"), ("n", "o")]


# -- removals of resources -----------------------------------------------------------------------------------------


def test_a_removal_drops_only_what_lower_layers_set() -> None:
    result = folded(
        layer("low", {"a": 1}, {"a": 1}),
        layer("middle", removes=("x",), priority=1),
        layer("high", {"b": 2}, priority=2),
    )
    assert result.conflicts == ()
    assert {ref.name: tree["spec"] for ref, tree in result.resources.items()} == {"x": {"b": 2}, "y": {"a": 1}}
    assert set(result.origins) == set(result.resources)


def test_a_removed_resource_is_absent() -> None:
    result = folded(layer("low", {"a": 1}), layer("high", removes=("x",), priority=1))
    assert (result.resources, result.origins, result.conflicts) == ({}, {}, ())


def test_a_layer_may_remove_a_resource_and_define_it_again() -> None:
    assert spec_of(layer("low", {"a": 1}), layer("high", {"b": 2}, removes=("x",), priority=1)) == {"b": 2}


@pytest.mark.parametrize(
    ("one", "other", "agree"),
    [
        (layer("m", removes=("x",)), layer("n", {"a": 1}), False),
        (layer("m", removes=("x",)), layer("n", {}), False),
        (layer("m", removes=("x",)), layer("n", removes=("x",)), True),
        (layer("m", {"a": 1}, removes=("x",)), layer("n", {"a": 1}), False),
        (layer("m", {"a": 1}, removes=("x",)), layer("n", removes=("x",)), False),
        (layer("m", {"a": 1}, removes=("x",)), layer("n", {"b": 1}, removes=("x",)), True),
        (layer("m", {"a": 1}, removes=("x",)), layer("n", {"a": 2}, removes=("x",)), False),
        (layer("m", removes=("x",)), layer("n", None, {"a": 1}), True),
    ],
)
def test_layers_of_one_rank_must_agree_on_removals(one: Layer, other: Layer, agree: bool) -> None:
    for layers in itertools.permutations((layer("low", {"c": 1}, priority=-1), one, other)):
        assert (folded(*layers).conflicts == ()) is agree


def test_a_removal_applies_to_one_namespace() -> None:
    manifests = [{"kind": "Component", "metadata": {"name": "x", "namespace": each}} for each in (NAMESPACE, "other")]
    both = Layer(read(layer("low"), resources=manifests), {})
    removals = [{"kind": "Component", "name": "x", "namespace": "other"}]
    high = Layer(read(layer("high", priority=1), removals=removals), {})
    assert [ref.namespace for ref in folded(both, high).resources] == [NAMESPACE]
    assert [ref.namespace for ref in folded(both, layer("high", removes=("x",), priority=1)).resources] == ["other"]


def read(one: Layer, **spec: Any) -> Profile:
    """Return the profile with parts of its spec replaced."""
    written = {"selector": {}, "priority": one.profile.spec.priority, **spec}
    document = read_document(
        {"apiVersion": API_VERSION, "kind": "Profile", "metadata": {"name": one.name}, "spec": written}
    )
    assert isinstance(document, Profile)
    return document


# -- the apply policy ----------------------------------------------------------------------------------------------


def test_the_apply_policy_folds_like_a_resource() -> None:
    result = folded(
        layer("low", apply={"strategy": "rolling", "unproven": "report", "verifyWindowSeconds": 5}),
        layer("middle", apply={"strategy": "reload"}, priority=1),
        layer("high", apply={"unproven": None}, priority=2),
        layer("silent", priority=3),
    )
    assert (result.apply, result.conflicts) == ({"strategy": "reload", "verifyWindowSeconds": 5}, ())


def test_without_layers_the_apply_policy_is_empty() -> None:
    assert folded().apply == folded(layer("m")).apply == {}


@pytest.mark.parametrize(("one", "other"), [("reload", "rolling"), ("rolling", None)])
def test_layers_of_one_rank_must_agree_on_the_apply_policy(one: Any, other: Any) -> None:
    for first, second in ((one, other), (other, one)):
        result = folded(layer("m", apply={"strategy": first}), layer("n", apply={"strategy": second}))
        assert result.conflicts == (Conflict(None, ("strategy",), ("m", "n"), 0),)
    assert folded(layer("m", apply={"strategy": one}), layer("n", apply={"strategy": one})).conflicts == ()


# -- origins -------------------------------------------------------------------------------------------------------


def test_the_origin_of_an_absent_field_is_that_of_the_nearest_one() -> None:
    result = folded(
        layer("low", {"type": "t", "metadata": [{"name": "p", "value": 1}, {"name": "q", "value": 1}], "list": [[1]]}),
        layer("high", {"metadata": [{"name": "q", "value": 2}, {"name": "p", "extra": None}]}, priority=1),
    )
    assert result.origin(X, ("spec", "metadata", Item("p"), "value")) == "low"
    assert result.origin(X, ("spec", "metadata", Item("q"), "value")) == "high"
    assert result.origin(X, ("spec", "metadata", Item("p"), "extra")) == "high"
    assert result.origin(X, ("spec", "list", 0, 0)) == "low"
    assert result.origin(X, ("spec", "version")) == "low"
