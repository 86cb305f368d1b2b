"""Hooks run in order, at least once, and each one is recorded before it starts."""

import pytest

from governor.reconciler.hooks import HookFailed, HooksDone, HooksWaiting
from governor.reconciler.kinds.module_instance import HookState
from governor.reconciler.render.request import Hook
from tests.contract.kube.applyset.bed import CONFIG_MAPS, DEFINITIONS, NAMESPACES, definition, exists, namespace_of
from tests.contract.reconciler.hooks.bed import (
    JOBS,
    PODS,
    TIMEOUT_S,
    CrashError,
    HookBed,
    config,
    custom,
    job,
    placed,
    pod,
    role,
    secret,
)


async def test_hooks_run_one_after_another_by_weight(bed: HookBed) -> None:
    hooks = (config("settings", -5, mode="a"), job("second", 1), job("first"), job("other", events="post-install"))

    waiting = await bed.run(hooks)
    assert isinstance(waiting, HooksWaiting)
    assert waiting.message == "waiting for the pre-install hook Job.batch first: it has started"
    assert bed.log == [
        "save settings Started",
        "apply settings",
        "save settings Succeeded, first Started",
        "apply first",
    ]
    assert isinstance(await bed.run(hooks), HooksWaiting)
    assert not await bed.exists("second")

    await bed.complete("first")
    assert isinstance(await bed.run(hooks), HooksWaiting)
    assert bed.log == ["save first Succeeded, second Started", "apply second"]

    await bed.complete("second")
    assert isinstance(await bed.run(hooks), HooksDone)
    assert bed.log == ["save second Succeeded"]
    assert not await bed.exists("other")


async def test_hooks_that_have_succeeded_cause_no_write_and_run_again_for_another_reference(bed: HookBed) -> None:
    hooks = (config("settings"), job("migrate", 1))
    await bed.run(hooks)
    await bed.complete("migrate")
    await bed.run(hooks)
    first = await bed.uid("migrate")
    bed.log.clear()
    bed.client.sent.clear()
    assert isinstance(await bed.run(hooks), HooksDone)
    assert bed.client.sent == []

    bed.reference = "second"
    assert isinstance(await bed.run(hooks), HooksWaiting)
    assert bed.log == [
        "save settings Started",
        "delete settings",
        "apply settings",
        "save settings Succeeded, migrate Started",
        "delete migrate",
        "apply migrate",
    ]
    assert await bed.uid("migrate") != first
    assert {record.reference for record in bed.records} == {"second"}

    await bed.complete("migrate")
    await bed.run(hooks)
    bed.reference = "first"  # whose records are gone: it is another change
    assert isinstance(await bed.run(hooks), HooksWaiting)


async def test_records_of_another_reference_are_dropped_even_if_there_is_no_hook(bed: HookBed) -> None:
    await bed.run((config("settings"),))
    bed.reference = "second"
    assert isinstance(await bed.run(()), HooksDone)
    assert bed.records == ()


async def test_the_hooks_of_one_event_leave_the_objects_of_others_in_place(bed: HookBed) -> None:
    await bed.run((config("password"),))
    bed.reference = "second"
    hooks = (config("password"), config("report", 0, "hook-succeeded", events="post-upgrade"))
    assert isinstance(await bed.run(hooks, "post-upgrade"), HooksDone)
    assert bed.log[-2:] == ["save report Succeeded", "delete report"]
    assert await bed.exists("password", CONFIG_MAPS)


@pytest.mark.parametrize("crash", ["save migrate Started", "apply migrate"])
async def test_a_hook_runs_at_least_once_although_the_program_crashes_before_it_is_created(
    bed: HookBed, crash: str
) -> None:
    bed.crash_at = crash
    with pytest.raises(CrashError):
        await bed.run((job("migrate"),))
    assert not await bed.exists("migrate")
    assert bed.states == ({} if crash.startswith("save") else {"migrate": HookState.STARTED})

    assert isinstance(await bed.run((job("migrate"),)), HooksWaiting)
    assert await bed.exists("migrate")


async def test_a_job_that_ended_while_its_success_could_not_be_saved_does_not_run_again(bed: HookBed) -> None:
    await bed.run((job("migrate"),))
    uid = await bed.uid("migrate")
    await bed.complete("migrate")
    bed.crash_at = "save migrate Succeeded"
    with pytest.raises(CrashError):
        await bed.run((job("migrate"),))
    assert isinstance(await bed.run((job("migrate"),)), HooksDone)
    assert await bed.uid("migrate") == uid


@pytest.mark.parametrize("crash", ["delete migrate", "apply migrate"])
async def test_the_end_of_an_earlier_run_is_not_taken_for_that_of_a_new_one(bed: HookBed, crash: str) -> None:
    await bed.run((job("migrate"),))
    earlier = await bed.uid("migrate")
    await bed.complete("migrate")
    await bed.run((job("migrate"),))

    bed.reference, bed.crash_at = "second", crash
    with pytest.raises(CrashError):
        await bed.run((job("migrate"),))
    assert bed.states == {"migrate": HookState.STARTED}
    assert isinstance(await bed.run((job("migrate"),)), HooksWaiting)
    assert await bed.uid("migrate") != earlier


async def test_an_object_that_is_deleted_meanwhile_is_created_again(bed: HookBed) -> None:
    await bed.run((job("migrate"),))
    await bed.client.delete(JOBS, "migrate", bed.namespace)
    assert isinstance(await bed.run((job("migrate"),)), HooksWaiting)
    assert await bed.exists("migrate")
    assert bed.states == {"migrate": HookState.STARTED}


async def test_a_job_under_deletion_is_waited_for_and_created_again(bed: HookBed) -> None:
    await bed.run((job("migrate"),))
    await bed.hold("migrate")
    await bed.client.delete(JOBS, "migrate", bed.namespace)
    waiting = await bed.run((job("migrate"),))
    assert isinstance(waiting, HooksWaiting)
    assert "waits for its finalizers: example.com/hold" in waiting.message
    await bed.hold("migrate", held=False)
    await bed.run((job("migrate"),))
    assert bed.log == ["apply migrate"]


async def test_a_failed_job_is_named_with_its_condition_and_runs_again(bed: HookBed) -> None:
    hooks = (config("settings", -1), job("migrate"), job("later", 1))
    await bed.run(hooks)
    failed = await bed.uid("migrate")
    await bed.fail("migrate")
    result = await bed.run(hooks)
    assert isinstance(result, HookFailed)
    assert result.hook == "Job.batch migrate"
    assert result.message == (
        "the pre-install hook Job.batch migrate failed: "
        "BackoffLimitExceeded: Job has reached the specified backoff limit"
    )
    assert bed.states == {"settings": HookState.SUCCEEDED, "migrate": HookState.FAILED}
    assert await bed.uid("migrate") == failed

    bed.log.clear()
    assert isinstance(await bed.run(hooks), HooksWaiting)
    assert bed.log == ["save migrate Started", "delete migrate", "apply migrate"]
    assert await bed.uid("migrate") != failed


@pytest.mark.parametrize(("phase", "ending"), [("Succeeded", HooksDone), ("Failed", HookFailed)])
async def test_a_pod_is_waited_for_until_it_ends(bed: HookBed, phase: str, ending: type) -> None:
    await bed.run((pod("check"),))
    await bed.end_pod("check", "Running")
    assert isinstance(await bed.run((pod("check"),)), HooksWaiting)
    await bed.end_pod("check", phase)
    assert isinstance(await bed.run((pod("check"),)), ending)
    assert await bed.exists("check", PODS)


async def test_a_hook_that_does_not_end_in_time_has_failed_with_the_state_of_its_object(bed: HookBed) -> None:
    await bed.run((job("migrate"),))
    await bed.clock.advance(TIMEOUT_S)
    assert isinstance(await bed.run((job("migrate"),)), HooksWaiting)
    await bed.clock.advance(1)
    result = await bed.run((job("migrate"),))
    assert isinstance(result, HookFailed)
    assert result.message == (
        "the pre-install hook Job.batch migrate failed: "
        "it has not ended after 300 s: Running: 0 active, 0 succeeded, 0 failed"
    )
    await bed.run((job("migrate"),))
    await bed.complete("migrate")
    await bed.clock.advance(2 * TIMEOUT_S)
    assert isinstance(await bed.run((job("migrate"),)), HooksDone)


async def test_an_object_of_another_client_is_never_removed(bed: HookBed) -> None:
    manifest = {**job("migrate").object, "metadata": {"name": "migrate", "namespace": bed.namespace}}
    await bed.client.create(JOBS, manifest, manager="user")
    uid = await bed.uid("migrate")
    result = await bed.run((job("migrate", 0, "before-hook-creation", "hook-failed"),))
    assert isinstance(result, HookFailed)
    assert "an object of its name exists, which is not removed" in result.message
    assert await bed.uid("migrate") == uid


@pytest.mark.parametrize(
    "hook", [config("UPPER", mode="hidden"), secret("not-text", value=["hidden"])], ids=["by the server", "before"]
)
async def test_a_hook_that_is_rejected_has_failed_and_its_content_is_not_shown(bed: HookBed, hook: Hook) -> None:
    result = await bed.run((hook,))
    assert isinstance(result, HookFailed)
    assert result.message.startswith(f"the pre-install hook {result.hook} failed: ")
    assert "hidden" not in result.message
    assert list(bed.states.values()) == [HookState.FAILED]


async def test_hooks_of_every_scope_are_replaced_for_another_reference(bed: HookBed) -> None:
    other = f"{bed.namespace}-other"
    await bed.client.create(NAMESPACES, namespace_of(other), manager="tests")
    hooks = (role(bed.namespace), secret("token", value="one"), placed(config("settings"), other))
    assert isinstance(await bed.run(hooks), HooksDone)
    assert bed.records[1].hook == f"ConfigMap {other}/settings"
    assert await exists(bed.client, CONFIG_MAPS, "settings", other)

    bed.reference = "second"
    bed.log.clear()
    assert isinstance(await bed.run(hooks), HooksDone)
    changes = [entry for entry in bed.log if not entry.startswith("save")]
    names = (bed.namespace, "settings", "token")
    assert changes == [f"{verb} {name}" for name in names for verb in ("delete", "apply")]
    await bed.objects.delete_all()


async def test_a_hook_waits_for_what_it_needs_until_its_time_is_over(bed: HookBed) -> None:
    other = f"{bed.namespace}-late"
    hooks = (placed(config("settings"), other),)
    waiting = await bed.run(hooks)
    assert isinstance(waiting, HooksWaiting)
    assert f'namespaces "{other}" not found' in waiting.message
    assert bed.states == {f"{other}/settings": HookState.STARTED}
    await bed.clock.advance(TIMEOUT_S + 1)
    assert isinstance(await bed.run(hooks), HookFailed)

    await bed.client.create(NAMESPACES, namespace_of(other), manager="tests")
    assert isinstance(await bed.run(hooks), HooksDone)


async def test_a_hook_may_define_the_kind_of_a_later_one(bed: HookBed) -> None:
    kind = f"Widget{bed.namespace.replace('-', '')}"
    crd = definition(kind, "example.com")
    early = await bed.run((custom(kind, "one"),))
    assert isinstance(early, HookFailed)
    assert early.message.endswith(f"the cluster does not serve {kind} in example.com/v1")
    assert bed.states == {}

    hooks = (Hook("templates/crd.yaml", crd, ("pre-install",), -1, ()), custom(kind, "one"))
    assert isinstance(await bed.run(hooks), HooksDone)
    uid = (await bed.client.get(DEFINITIONS, crd["metadata"]["name"]))["metadata"]["uid"]
    bed.reference = "second"
    assert isinstance(await bed.run(hooks), HooksDone)
    assert (await bed.client.get(DEFINITIONS, crd["metadata"]["name"]))["metadata"]["uid"] == uid
    await bed.objects.delete_all()
