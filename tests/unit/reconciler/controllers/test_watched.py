"""The pace of a controller, and which changes of Secrets and ModuleInstances count."""

import msgspec

from governor.process.clock import VirtualClock
from governor.reconciler.controllers.clusters import is_current, manifest_of
from governor.reconciler.controllers.watched import Delay, Pace, SourceMetadata, is_edited
from governor.reconciler.kinds.module_instance import ModuleInstance, ModuleInstanceSpec
from governor.reconciler.resolution.resolution import Resolution
from tests.unit.reconciler.bed import CREATED, NAMESPACE, catalogue, digest, instance

SPEC = ModuleInstanceSpec("dapr", "local", "shop", CREATED, "1.0.0", digest("1.0.0"), "dapr", "dapr", values={"a": 1})


async def test_the_first_change_is_worked_on_at_once_and_more_of_them_together() -> None:
    clock = VirtualClock()
    pace = Pace(clock, 1.0)
    assert pace.wait_s("a") == 0.0
    assert pace.wait_s("b") == 0.0, "keys do not wait for each other"
    await clock.advance(0.25)
    assert pace.wait_s("a") == 0.75
    assert pace.wait_s("a") == 0.75, "waiting does not prolong the wait"
    await clock.advance(0.75)
    assert pace.wait_s("a") == 0.0
    assert pace.wait_s("a") == 1.0
    pace.forget("a")
    assert pace.wait_s("a") == 0.0


async def test_what_lasts_is_acted_on_after_its_delay_and_what_ends_before_begins_again() -> None:
    clock = VirtualClock()
    delay = Delay(clock, 1.0)
    assert delay.wait_s("a") == 1.0
    await clock.advance(0.25)
    assert delay.wait_s("a") == 0.75
    assert delay.wait_s("b") == 1.0, "keys do not wait for each other"
    delay.forget("a")
    assert delay.wait_s("a") == 1.0
    await clock.advance(2.0)
    assert delay.wait_s("a") == delay.wait_s("b") == 0.0


def test_each_write_of_a_source_counts() -> None:
    first = SourceMetadata("s", "ns", "uid", "1")
    assert first == SourceMetadata("s", "ns", "uid", "1")
    assert first != SourceMetadata("s", "ns", "uid", "2")


def test_a_change_of_the_status_alone_does_not_place_a_module_again() -> None:
    old = instance(SPEC)
    assert not is_edited(old, instance(SPEC, status={"state": "Ready"}))
    assert is_edited(old, instance(SPEC, generation=2))
    assert is_edited(old, instance(SPEC, labels={}))


def written(spec: ModuleInstanceSpec = SPEC, **more: object) -> ModuleInstance:
    """Return a ModuleInstance as its manifest creates it."""
    manifest = manifest_of(SPEC, NAMESPACE)
    labels = manifest["metadata"]["labels"] | {"reconciler.runtime-governor.dev/owner": "x"}
    return instance(spec, **({"labels": labels} | more))


def test_there_is_nothing_to_do_only_if_everything_is_as_desired() -> None:
    desired = Resolution((), {"dapr": SPEC}, frozenset(), ())

    def is_done(*live: ModuleInstance, resolution: Resolution = desired) -> bool:
        return is_current(resolution, catalogue(instances=live))

    assert is_done(written())
    assert not is_done()
    assert not is_done(written(msgspec.structs.replace(SPEC, version="2.0.0")))
    assert not is_done(written(msgspec.structs.replace(SPEC, values={"a": True}))), "in values, 1 is not true"
    assert not is_done(written(labels={}))
    assert not is_done(written(deletionTimestamp="2026-01-01T00:00:00Z"))
    gone = written(msgspec.structs.replace(SPEC, module="old"))
    assert not is_done(written(), gone, resolution=msgspec.structs.replace(desired, removed=(gone,)))
    foreign = instance(msgspec.structs.replace(SPEC, module="mine"), labels={})
    assert is_done(written(), foreign, resolution=msgspec.structs.replace(desired, removed=(foreign,)))
