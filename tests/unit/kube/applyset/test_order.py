"""The order of writing."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.kube.applyset.order import Stage, in_stages, side_by_side, stage_of
from governor.kube.objects import ObjectRef
from tests.unit.values.strategies import brief

ORDERED = [
    ("apiextensions.k8s.io", "CustomResourceDefinition"),
    ("", "Namespace"),
    ("scheduling.k8s.io", "PriorityClass"),
    ("", "ServiceAccount"),
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


def test_each_kind_comes_after_what_it_needs() -> None:
    shuffled = [ref(*kind) for kind in ORDERED]
    random.Random(0).shuffle(shuffled)
    stages = in_stages(shuffled, lambda each: each)
    assert [(each.group, each.kind) for stage in stages for each in stage] == ORDERED
    assert [len(stage) for stage in stages] == [1] * len(ORDERED)


def test_a_kind_of_another_group_is_not_mistaken() -> None:
    assert stage_of(ref("", "Service")) is Stage.SERVICES
    assert stage_of(ref("serving.knative.dev", "Service")) is Stage.OTHERS
    assert stage_of(ref("example.com", "Namespace")) is Stage.OTHERS
    assert stage_of(ref("apiregistration.k8s.io", "APIService")) is Stage.GATES


@brief
@given(st.lists(refs))
def test_nothing_is_lost_and_each_stage_keeps_the_order_that_was_given(items: list[ObjectRef]) -> None:
    stages = in_stages(items, lambda each: each)
    assert sorted(each for stage in stages for each in stage) == sorted(items)
    assert all(stages)
    for stage in stages:
        assert len({stage_of(each) for each in stage}) == 1
        assert list(stage) == [each for each in items if stage_of(each) is stage_of(stage[0])]
    assert [stage_of(stage[0]) for stage in stages] == sorted({stage_of(each) for each in items})


async def test_at_most_so_many_run_and_results_keep_their_order() -> None:
    running: set[int] = set()
    most = 0

    async def act(number: int) -> int:
        nonlocal most
        running.add(number)
        most = max(most, len(running))
        for _ in range(10 - number):
            await asyncio.sleep(0)
        running.remove(number)
        return number * number

    assert await side_by_side(range(10), act, 3) == [number * number for number in range(10)]
    assert most == 3


async def test_the_first_error_ends_the_others_and_comes_out_as_it_is() -> None:
    ended = []

    async def act(number: int) -> None:
        if number == 1:
            raise LookupError(number)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    with pytest.raises(LookupError):
        await side_by_side([0, 1, 2], act, 3)
    assert sorted(ended) == [0, 2]


async def test_cancelling_ends_them_all() -> None:
    started = asyncio.Event()

    async def act(_: int) -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(side_by_side([0, 1], act, 2))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
