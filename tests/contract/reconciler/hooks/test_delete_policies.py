"""Objects of hooks are removed by their delete policies, and not before."""

import pytest

from governor.reconciler.hooks import HookFailed, HooksDone, HooksWaiting
from governor.reconciler.kinds.module_instance import HookState
from tests.contract.kube.applyset.bed import CONFIG_MAPS
from tests.contract.reconciler.hooks.bed import TIMEOUT_S, CrashError, HookBed, config, job


async def test_objects_are_removed_when_all_hooks_of_the_event_have_succeeded(bed: HookBed) -> None:
    hooks = (
        config("settings", -1, "before-hook-creation", "hook-succeeded"),
        config("stays", -1),
        job("migrate", 0, "hook-succeeded"),
    )
    await bed.run(hooks)
    await bed.fail("migrate")
    assert isinstance(await bed.run(hooks), HookFailed)
    assert await bed.exists("migrate")
    assert await bed.exists("settings", CONFIG_MAPS)  # the next attempt needs it

    await bed.run(hooks)
    await bed.complete("migrate")
    assert isinstance(await bed.run(hooks), HooksDone)
    assert bed.log == ["save migrate Succeeded", "delete migrate", "delete settings"]
    assert await bed.exists("stays", CONFIG_MAPS)

    bed.log.clear()
    assert isinstance(await bed.run(hooks), HooksDone)
    assert bed.log == []


async def test_the_removal_after_success_is_finished_after_a_crash_and_waited_for(bed: HookBed) -> None:
    hooks = (config("settings", -1, "hook-succeeded"), job("migrate", 0, "hook-succeeded"))
    await bed.run(hooks)
    await bed.hold("migrate")
    await bed.complete("migrate")
    bed.crash_at = "delete migrate"
    with pytest.raises(CrashError):
        await bed.run(hooks)
    waiting = await bed.run(hooks)
    assert isinstance(waiting, HooksWaiting)
    assert waiting.message.startswith("waiting for the pre-install hook Job.batch migrate: its object is being removed")
    assert set(bed.states.values()) == {HookState.SUCCEEDED}

    await bed.clock.advance(TIMEOUT_S + 1)
    failed = await bed.run(hooks)
    assert isinstance(failed, HookFailed)
    assert "finalizer example.com/hold" in failed.message
    assert await bed.exists("settings", CONFIG_MAPS)

    await bed.hold("migrate", held=False)
    assert isinstance(await bed.run(hooks), HooksDone)
    assert bed.log == ["delete settings"]


async def test_a_failed_hook_is_removed_after_its_failure_is_recorded(bed: HookBed) -> None:
    hooks = (job("migrate", 0, "hook-failed"),)
    await bed.run(hooks)
    await bed.fail("migrate")
    assert isinstance(await bed.run(hooks), HookFailed)
    assert bed.log == ["save migrate Failed", "delete migrate"]
    await bed.run(hooks)
    await bed.complete("migrate")
    assert isinstance(await bed.run(hooks), HooksDone)
    assert await bed.exists("migrate")


async def test_the_object_of_an_earlier_run_is_waited_for_until_it_is_gone(bed: HookBed) -> None:
    await bed.run((job("migrate"),))
    await bed.hold("migrate")
    await bed.complete("migrate")
    await bed.run((job("migrate"),))

    bed.reference = "second"
    waiting = await bed.run((job("migrate"),))
    assert isinstance(waiting, HooksWaiting)
    assert "the object of an earlier run is being removed" in waiting.message
    await bed.clock.advance(TIMEOUT_S + 1)
    failed = await bed.run((job("migrate"),))
    assert isinstance(failed, HookFailed)
    assert "the object of an earlier run remains after 300 s: Finalizers" in failed.message

    await bed.hold("migrate", held=False)
    assert isinstance(await bed.run((job("migrate"),)), HooksWaiting)
    assert await bed.exists("migrate")


async def test_without_the_policy_a_later_run_applies_the_object_in_place(bed: HookBed) -> None:
    await bed.run((config("settings", 0, "hook-failed", mode="a"),))
    uid = await bed.uid("settings", CONFIG_MAPS)
    bed.reference = "second"
    assert isinstance(await bed.run((config("settings", 0, "hook-failed", mode="b"),)), HooksDone)
    live = await bed.client.get(CONFIG_MAPS, "settings", bed.namespace)
    assert (live["metadata"]["uid"], live["data"]) == (uid, {"mode": "b"})


async def test_an_event_that_is_over_does_not_remove_an_object_that_a_later_one_uses(bed: HookBed) -> None:
    hooks = (job("check", 0, "hook-succeeded", events="pre-install,post-install"),)
    await bed.run(hooks)
    await bed.complete("check")
    assert isinstance(await bed.run(hooks), HooksDone)
    assert not await bed.exists("check")

    await bed.run(hooks, "post-install")
    assert isinstance(await bed.run(hooks, "pre-install"), HooksDone)
    assert await bed.exists("check")
    await bed.complete("check")
    assert isinstance(await bed.run(hooks, "post-install"), HooksDone)
    assert not await bed.exists("check")


async def test_nothing_is_left_when_the_module_is_removed(bed: HookBed) -> None:
    hooks = (config("settings", -1), job("migrate"))
    await bed.run(hooks)
    assert (await bed.objects.delete_all()).complete
    assert not await bed.exists("settings", CONFIG_MAPS)
    assert not await bed.exists("migrate")
    assert await bed.objects.inventory() == {}
