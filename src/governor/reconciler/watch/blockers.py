"""Watches of what refuses the objects of modules, such as quotas, so that its removal is noticed at once."""

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from governor.kube.client import Client
from governor.kube.objects import ApiResource
from governor.kube.reflector import Reflector, View
from governor.process.clock import Clock
from governor.process.tasks import Tasks
from governor.reconciler.watch.kind_watch import KindName, KindWatch, OnFailure

QUOTAS: Final = (KindName("", "ResourceQuota"),)
_ADMISSION: Final = "admissionregistration.k8s.io"
ADMISSION: Final = tuple(
    KindName(_ADMISSION, each)
    for each in (
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "ValidatingWebhookConfiguration",
        "MutatingWebhookConfiguration",
    )
)
INTERVAL_S: Final = 10.0
"""The shortest time between two reports of one kind: the usage in the status of a quota may change all the time."""


class Blockers:
    """The kinds that modules of one cluster are blocked by, each watched while a module waits for a change of it.

    ``on_change`` is called with the name of each such module when an object of the kind has changed.
    """

    def __init__(self, client: Client, clock: Clock, on_change: Callable[[str], None]) -> None:
        self._client = client
        self._clock = clock
        self._on_change = on_change
        self._modules: dict[str, Collection[KindName]] = {}
        self._tasks: dict[KindName, asyncio.Task[None]] = {}
        self._watches = Tasks()

    async def run(self) -> None:
        """Watch until cancelled."""
        self._tasks.clear()
        await self._watches.run()

    def expect(self, module: str, kinds: Collection[KindName]) -> None:
        """Report changes of these kinds for a module, and of no others."""
        if kinds:
            self._modules[module] = kinds
        else:
            self._modules.pop(module, None)
        for name in kinds:
            if name not in self._tasks and self._watches.is_running:
                self._tasks[name] = self._watches.start(self._watch(name))
        for name in self._tasks.keys() - {each for blocking in self._modules.values() for each in blocking}:
            self._tasks.pop(name).cancel()

    async def _watch(self, name: KindName) -> None:
        changed = asyncio.Event()

        def reflect(resource: ApiResource, on_failure: OnFailure) -> Reflector[View]:
            return Reflector(
                self._client,
                resource,
                View,
                clock=self._clock,
                on_event=lambda _: changed.set(),
                metadata_only=True,
                on_failure=on_failure,
            )

        watch = KindWatch(self._client, name, reflect, self._clock, lambda: None)
        async with asyncio.TaskGroup() as group:
            group.create_task(watch.run())
            while True:
                await changed.wait()
                changed.clear()
                for module in [each for each, kinds in self._modules.items() if name in kinds]:
                    self._on_change(module)
                await self._clock.sleep(INTERVAL_S)
