"""Asks the sidecars of a cluster, and reads why those that failed did so."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from governor.agent.platform import Superseded
from governor.agent.platforms.kubernetes.plans.affected import live_pods
from governor.agent.platforms.kubernetes.plans.hot_reload import SidecarFacts
from governor.agent.platforms.kubernetes.proof import sidecar_log
from governor.agent.platforms.kubernetes.proof.instances import Probed, facts, has_exited, has_failed
from governor.agent.platforms.kubernetes.proof.sidecar_reader import SidecarReader, SidecarReading
from governor.agent.platforms.kubernetes.workloads.workload import Pod, Workload
from governor.agent.redaction import Redactor
from governor.kube.client import Client
from governor.process.clock import Clock

LOGS_AT_ONCE: Final = 8
"""Logs of sidecars that are read at once, each through the API server."""
_POLL_S: Final = 0.2
"""How often it is checked whether a newer delivery has arrived."""


_Read: TypeAlias = Callable[[Client, Pod], Awaitable[tuple[str, ...]]]


class _Failed(NamedTuple):
    """A failure of a sidecar: how often it has exited in its pod, and failed to initialise components since."""

    pod_uid: str
    exits: int
    failures: int


class Probes:
    """Asks the sidecars of a cluster."""

    def __init__(self, client: Client, reader: SidecarReader, redactor: Redactor, clock: Clock) -> None:
        self._client = client
        self._reader = reader
        self._redactor = redactor
        self._clock = clock
        self._log_slots = asyncio.Semaphore(LOGS_AT_ONCE)
        self._logged: dict[_Failed, tuple[str, ...]] = {}
        """The errors in the logs of the sidecars that had failed when they were asked last."""
        self.facts: dict[str, SidecarFacts] = {}
        """What sidecars reported when they were asked last, by instance."""

    async def read(self, pods: Sequence[Pod], superseded: Superseded) -> dict[str, Probed]:
        """Return what the sidecars answer, by pod uid.

        Many that do not respond take minutes: if the delivery is superseded meanwhile, nothing is returned.
        """
        readings = await self._read(pods, superseded)
        if readings is None:
            return {}
        now = self._clock.now()
        self.facts |= {pod.instance: known for pod in pods if (known := facts(readings[pod.uid].status))}
        return {pod.uid: Probed(pod, readings[pod.uid].status, now, readings[pod.uid].reason) for pod in pods}

    async def ask_once(self, pods: Sequence[Pod]) -> Mapping[str, SidecarFacts]:
        """Return what the sidecars of all running pods have reported, by instance; who was asked is not asked again."""
        self.facts = {pod.instance: self.facts[pod.instance] for pod in pods if pod.instance in self.facts}
        unknown = [pod for pod in pods if pod.sidecar and pod.sidecar.ready and pod.instance not in self.facts]
        await self.read(unknown, lambda: False)
        return self.facts

    async def ask(self, pods: Sequence[Pod], before: Mapping[str, Probed], superseded: Superseded) -> dict[str, Probed]:
        """Return what the sidecars answer, by pod uid, with the errors of those that have failed since ``before``."""
        answers = (await self.read(pods, superseded)).values()
        known, self._logged = self._logged, {}
        explained = await asyncio.gather(
            *(self._with_errors(each, before.get(each.pod.uid), known) for each in answers)
        )
        return {each.pod.uid: each for each in explained}

    async def _with_errors(
        self, now: Probed, before: Probed | None, known: Mapping[_Failed, tuple[str, ...]]
    ) -> Probed:
        """Return an answer with the errors in the sidecar's log, if it has exited or could not initialise something."""
        pod = now.pod
        if has_exited(pod, before.pod if before else None):
            if pod.sidecar is not None and pod.sidecar.killed:
                # Its log does not say who ended it.
                return msgspec.structs.replace(now, errors=(self._last_exit(pod),))
            found = await self._errors(now, known, sidecar_log.read_exit_errors)
            return msgspec.structs.replace(now, errors=found or (self._last_exit(pod),))
        if has_failed(now, before):
            return msgspec.structs.replace(now, errors=await self._errors(now, known, _read_present))
        return now

    async def _read(self, pods: Sequence[Pod], superseded: Superseded) -> dict[str, SidecarReading] | None:
        reading = asyncio.ensure_future(self._reader.read_all(pods))
        try:
            while not reading.done():
                await asyncio.wait({reading}, timeout=_POLL_S)
                if not reading.done() and superseded():
                    return None
            return reading.result()
        finally:
            reading.cancel()

    def _last_exit(self, pod: Pod) -> str:
        ended = pod.sidecar.last_exit if pod.sidecar else ""
        return self._redactor.redact(f"the sidecar of pod {pod.name} exited: {ended}")

    async def _errors(self, now: Probed, known: Mapping[_Failed, tuple[str, ...]], read: _Read) -> tuple[str, ...]:
        """Return the errors in a log, which is read once for each failure of a sidecar."""
        failed = _failed(now)
        if failed not in known:
            async with self._log_slots:
                self._logged[failed] = await read(self._client, now.pod)
        else:
            self._logged[failed] = known[failed]
        return tuple(map(self._redactor.redact, self._logged[failed]))


async def _read_present(client: Client, pod: Pod) -> tuple[str, ...]:
    return await sidecar_log.read_errors(client, pod, previous=False)


def _failed(now: Probed) -> _Failed:
    counters = now.status.counters if now.status is not None else None
    failures = sum(counters.failed.values()) if counters is not None else 0
    return _Failed(now.pod.uid, now.pod.sidecar.exits if now.pod.sidecar else 0, failures)


def confirmed(answers: Mapping[str, Probed], workloads: Sequence[Workload]) -> dict[str, Probed]:
    """Return the answers without those of pods that changed meanwhile: another sidecar may have got their address."""
    now = {pod.uid: pod for each in workloads for pod in live_pods(each)}

    def is_same(each: Probed) -> bool:
        pod = now.get(each.pod.uid)
        return pod is not None and (pod.instance, pod.ip) == (each.pod.instance, each.pod.ip)

    gone = {uid: msgspec.structs.replace(each, status=None) for uid, each in answers.items() if not is_same(each)}
    return {**answers, **gone}
