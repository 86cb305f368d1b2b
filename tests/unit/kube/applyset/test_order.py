"""Apply order and bounded concurrency."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.kube.applyset.order import Stage, gather_bounded, group_by_stage, stage_of
from governor.kube.objects import ObjectRef

ORDERED = [
    ("apiextensions.k8s.io", "CustomResourceDefinition"),
    ("", "Namespace"),
    ("scheduling.k8s.io", "PriorityClass"),
    ("", "ServiceAccount"),
    ("rbac.authorization.k8s.io", "Role"),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"),
    ("", "Secret"),
    ("", "PersistentVolumeClaim"),
    ("", "Service"),
    ("apps", "Deployment"),
    ("dapr.io", "Component"),
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"),
]
refs = st.builds(
    lambda kind, namespace, name: ObjectRef(kind[0], kind[1], namespace, name),
    st.sampled_from(ORDERED),
    st.sampled_from(["", "a", "b"]),
    st.text(min_size=1, max_size=5),
)


def ref(group: str, kind: str) -> ObjectRef:
    return ObjectRef(group, kind, "", "x")


def test_each_kind_follows_its_prerequisites() -> None:
    shuffled = [ref(*kind) for kind in ORDERED]
    random.Random(0).shuffle(shuffled)
    stages = group_by_stage(shuffled, lambda each: each)
    assert [(each.group, each.kind) for stage in stages for each in stage] == ORDERED
    assert [len(stage) for stage in stages] == [1] * len(ORDERED)


def test_the_stage_depends_on_the_group() -> None:
    assert stage_of(ref("", "Service")) is Stage.SERVICES
    assert stage_of(ref("serving.knative.dev", "Service")) is Stage.OTHERS
    assert stage_of(ref("example.com", "Namespace")) is Stage.OTHERS
    assert stage_of(ref("apiregistration.k8s.io", "APIService")) is Stage.ADMISSION


@given(st.lists(refs))
def test_stages_keep_all_items_in_their_order(items: list[ObjectRef]) -> None:
    stages = group_by_stage(items, lambda each: each)
    assert sorted(each for stage in stages for each in stage) == sorted(items)
    assert all(stages)
    for stage in stages:
        assert len({stage_of(each) for each in stage}) == 1
        assert list(stage) == [each for each in items if stage_of(each) is stage_of(stage[0])]
    assert [stage_of(stage[0]) for stage in stages] == sorted({stage_of(each) for each in items})


def test_objects_to_be_applied_first_begin_their_own_stage_only() -> None:
    store, component, secret = ref("dapr.io", "Component"), ref("dapr.io", "HTTPEndpoint"), ref("", "Secret")
    items = [component, store, secret]
    assert group_by_stage(items, lambda each: each, [{store}]) == ((secret,), (store,), (component,))
    assert group_by_stage(items, lambda each: each, [{store}, {component}]) == ((secret,), (store,), (component,))
    assert group_by_stage(items, lambda each: each, [{component}, {store}]) == ((secret,), (component,), (store,))


async def test_concurrency_is_bounded_and_results_keep_their_order() -> None:
    running: set[int] = set()
    peak = 0

    async def call(number: int) -> int:
        nonlocal peak
        running.add(number)
        peak = max(peak, len(running))
        for _ in range(10 - number):
            await asyncio.sleep(0)
        running.remove(number)
        return number * number

    assert await gather_bounded(range(10), call, 3) == [number * number for number in range(10)]
    assert peak == 3


async def test_the_first_error_cancels_the_others_and_is_raised() -> None:
    cancelled = []

    async def call(number: int) -> None:
        if number == 1:
            raise LookupError(number)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(number)

    with pytest.raises(LookupError):
        await gather_bounded([0, 1, 2], call, 3)
    assert sorted(cancelled) == [0, 2]


async def test_cancellation_cancels_all_calls() -> None:
    started = asyncio.Event()

    async def call(_: int) -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(gather_bounded([0, 1], call, 2))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
