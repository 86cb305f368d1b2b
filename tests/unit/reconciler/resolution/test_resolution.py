"""All ModuleInstances of a cluster: nothing is removed because something cannot be resolved or read."""

from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from governor.kube.reflector import Entry
from governor.reconciler.kinds.installation import Installation
from governor.reconciler.kinds.module_instance import ModuleInstance, ModuleInstanceSpec
from governor.reconciler.kinds.state import Problem
from governor.reconciler.resolution.catalogue import Catalogue
from governor.reconciler.resolution.resolution import Resolution, dependency_levels, resolve
from tests.unit.reconciler.bed import CREATED, catalogue, channel, cluster, installation, instance, module, unreadable

DIGEST = f"sha256:{'0' * 64}"
MODULES = [module("dapr"), module("dapr", "2.0.0"), module("redis")]


def spec_of(name: str = "dapr") -> ModuleInstanceSpec:
    found = resolve(catalogue([installation(name)], MODULES), cluster()).instances[name]
    assert found.hold is None
    return found


def resolved(
    installations: Sequence[Entry[Installation]], instances: Sequence[Entry[ModuleInstance]] = ()
) -> Resolution:
    return resolve(catalogue(installations, MODULES, instances=instances), cluster())


def removed(resolution: Resolution) -> list[str]:
    return [each.metadata.name for each in resolution.removed]


def test_each_module_that_an_installation_enables_has_an_instance() -> None:
    found = resolved([installation("dapr"), installation("redis")])
    assert set(found.instances) == {"dapr", "redis"}
    assert [each.module for each in found.placements] == ["dapr", "redis"]
    assert not found.removed


def test_an_instance_is_removed_when_no_installation_asks_for_it() -> None:
    live = [instance(spec_of("dapr")), instance(spec_of("redis"))]
    assert removed(resolved([installation("redis")], live)) == ["dapr.local"]
    assert removed(resolved([installation("redis"), installation("dapr", deleted=True)], live)) == ["dapr.local"]


def test_instances_of_other_clusters_are_no_concern() -> None:
    other = msgspec.structs.replace(spec_of(), cluster="other")
    assert removed(resolved([], [instance(other)])) == []


def test_what_cannot_be_resolved_any_more_keeps_its_spec_on_hold() -> None:
    live = instance(spec_of())
    found = resolved([installation("dapr", version="9.0.0")], [live])
    held = found.instances["dapr"]
    assert held.hold is not None
    assert held.hold.reason == "ModuleMissing"
    assert msgspec.structs.replace(held, hold=None) == live.spec
    assert not found.removed


def test_an_instance_is_no_longer_on_hold_once_it_is_resolved() -> None:
    held = resolved([installation("dapr", version="9.0.0")], [instance(spec_of())]).instances["dapr"]
    assert resolved([installation("dapr", version="2.0.0")], [instance(held)]).instances["dapr"].hold is None


def test_what_was_never_resolved_gets_no_instance() -> None:
    found = resolved([installation("dapr", version="9.0.0")])
    assert not found.instances
    (placement,) = found.placements
    assert isinstance(placement.outcome, Problem)


def test_a_conflict_leaves_the_instance_as_it_is_and_its_end_hands_it_over() -> None:
    first, second = installation("a", "dapr"), installation("b", "dapr", "2.0.0")
    live = instance(resolved([first]).instances["dapr"])
    both = resolved([first, second], [live])
    held = both.instances["dapr"]
    assert (held.installation, held.version) == ("a", "1.0.0")
    assert held.hold is not None
    assert held.hold.reason == "Conflict"
    handed_over = resolved([second], [instance(held)])
    assert handed_over.instances["dapr"].installation == "b"
    assert handed_over.instances["dapr"].hold is None
    assert not handed_over.removed


def test_an_unreadable_installation_removes_nothing() -> None:
    live = instance(spec_of())
    found = resolved([unreadable("dapr")], [live])
    assert not found.removed
    held = found.instances["dapr"].hold
    assert held is not None
    assert held.reason == "InstallationUnreadable"
    by_last_state = resolved([unreadable("dapr", installation("dapr"))], [live])
    assert by_last_state.instances["dapr"] == live.spec


def test_an_unreadable_instance_is_written_anew_or_kept_but_never_removed() -> None:
    assert resolved([installation("dapr")], [unreadable("dapr.local")]).instances["dapr"] == spec_of()
    for entry in (unreadable("dapr.local"), unreadable("dapr.local", instance(spec_of()))):
        found = resolved([], [entry])
        assert found.kept == {"dapr.local"}
        assert not found.removed


_NAMES = st.sampled_from(["a", "b", "c", "d"])
_VERSIONS = st.sampled_from(["1.0.0", "2.0.0"])


@st.composite
def hubs(draw: st.DrawFn) -> tuple[Catalogue, set[str]]:
    """Return a hub with any objects, and the names of instances whose Installation is readable and gone."""
    modules = {
        (name, version): module(name, version, depends_on=draw(st.sets(_NAMES, max_size=2)))
        for name, version in draw(st.sets(st.tuples(_NAMES, _VERSIONS), max_size=6))
    }
    channels = [channel(**draw(st.dictionaries(_NAMES, _VERSIONS, max_size=3)))] if draw(st.booleans()) else []
    installations: list[Entry[Installation]] = []
    for number in range(draw(st.integers(0, 6))):
        name, of = f"i{number}", draw(_NAMES)
        how = draw(st.sampled_from(["version", "channel", "unreadable", "deleted", "elsewhere"]))
        installations.append(_installation(name, of, how, draw(_VERSIONS)))
    live = [
        instance(
            ModuleInstanceSpec(
                name, "local", f"i{draw(st.integers(0, 6))}", CREATED, "1.0.0", "sha256:" + "0" * 64, name, name
            )
        )
        for name in draw(st.sets(_NAMES))
    ]
    asked = {each.spec.module for each in installations if isinstance(each, Installation) and _asks(each)}
    hidden = {each.metadata.name for each in installations if not isinstance(each, Installation)}
    gone = {
        each.metadata.name for each in live if each.spec.module not in asked and each.spec.installation not in hidden
    }
    return catalogue(installations, modules.values(), channels, live), gone


def _installation(name: str, of: str, how: str, version: str) -> Entry[Installation]:
    match how:
        case "channel":
            return installation(name, of, channel="stable")
        case "unreadable":
            return unreadable(name)
        case "elsewhere":
            return installation(name, of, version, clusterSelector={"matchLabels": {"nobody": "has"}})
        case _:
            return installation(name, of, version, deleted=how == "deleted")


def _asks(each: Installation) -> bool:
    return not each.metadata.deletion_timestamp and each.spec.cluster_selector is None


@given(hubs())
def test_exactly_what_no_installation_asks_for_is_removed(hub: tuple[Catalogue, set[str]]) -> None:
    known, gone = hub
    found = resolve(known, cluster())
    assert set(removed(found)) == gone
    assert {f"{name}.local" for name in found.instances}.isdisjoint(gone)
    for entry in known.instances.values():
        assert isinstance(entry, ModuleInstance)
        wanted = found.instances.get(entry.spec.module)
        if wanted is not None and wanted.hold is not None:
            assert msgspec.structs.replace(wanted, hold=None) == entry.spec


@given(hubs())
def test_resolving_again_after_its_result_was_written_changes_nothing(hub: tuple[Catalogue, set[str]]) -> None:
    known, _ = hub
    first = resolve(known, cluster())
    written = catalogue(
        known.installations.values(),
        known.modules.values(),
        known.channels.values(),
        [instance(each) for each in first.instances.values()],
    )
    second = resolve(written, cluster())
    assert second.instances == first.instances
    assert not second.removed


@given(hubs())
def test_no_cycle_of_dependencies_is_ever_applied(hub: tuple[Catalogue, set[str]]) -> None:
    known, _ = hub
    instances = resolve(known, cluster()).instances
    fresh = {name: each for name, each in instances.items() if each.hold is None}
    order: list[str] = []
    while left := [name for name in fresh if name not in order]:
        free = [name for name in left if not (set(fresh[name].depends_on) & (fresh.keys() - set(order)))]
        assert free, f"none of {left} can be applied first"
        order += free


def test_modules_are_written_after_those_that_they_depend_on() -> None:
    spec = spec_of()
    found = {
        name: msgspec.structs.replace(spec, module=name, depends_on=tuple(others))
        for name, others in {"a": "bc", "b": "c", "c": "", "d": "", "e": "d"}.items()
    }
    assert dependency_levels(found.values()) == [frozenset("cd"), frozenset("be")]
    cycle = [msgspec.structs.replace(spec, module=name, depends_on=tuple(other)) for name, other in ("ab", "ba")]
    assert dependency_levels(cycle) == dependency_levels([spec]) == []
