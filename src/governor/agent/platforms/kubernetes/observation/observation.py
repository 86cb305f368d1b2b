"""Observes the Dapr resources of some namespaces, and asks the sidecars whether they use them. Only reads."""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import click

from governor.agent.platforms.kubernetes.home import open_access
from governor.agent.platforms.kubernetes.observation.history import History
from governor.agent.platforms.kubernetes.observation.printing import as_json, as_table
from governor.agent.platforms.kubernetes.observation.snapshot import Snapshot, changed_refs, snapshot_of
from governor.agent.platforms.kubernetes.plans.affected import live_pods
from governor.agent.platforms.kubernetes.proof.instances import Probed
from governor.agent.platforms.kubernetes.proof.judgement import findings_of, judge_workload
from governor.agent.platforms.kubernetes.proof.probes import Probes, confirmed
from governor.agent.platforms.kubernetes.proof.sidecar_reader import PROXY_LIMITS, Route, SidecarReader, open_session
from governor.agent.platforms.kubernetes.resources.inventory import dapr_objects
from governor.agent.platforms.kubernetes.resources.object_watch import ObjectWatch
from governor.agent.platforms.kubernetes.workloads.observer import Observer
from governor.agent.redaction import Redactor
from governor.agent.settings import Settings
from governor.agent.verification import findings
from governor.agent.verification.findings import Findings
from governor.domain.dapr.kinds import GROUP, kinds
from governor.domain.documents import ApplyPolicy
from governor.errors import GovernorError, Kind
from governor.kube.client import Client, Transport
from governor.kube.objects import ObjectRef
from governor.process.clock import Clock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.reconcile.reconciler import Done, Outcome, ReconcileMetrics, Reconciler, Requeue
from governor.process.reconcile.resync import Resync
from governor.process.supervise import Component
from governor.process.telemetry.health import Checks
from governor.process.telemetry.instruments import Registry

_KEY: Final = "observation"
_WINDOW_S: Final = float(ApplyPolicy().verify_window_seconds)
_BACKOFF: Final = Backoff(initial_s=0.5, max_s=60.0)
_PAUSE_S: Final = 1.0
"""Between two checks while sidecars have not proven a change."""


class Observation:
    """The observation of some namespaces. ``show`` receives the findings whenever they change."""

    def __init__(
        self,
        client: Client,
        namespaces: Sequence[str],
        observer: Observer,
        watch: ObjectWatch,
        probes: Probes,
        redactor: Redactor,
        clock: Clock,
        show: Callable[[Findings], None],
    ) -> None:
        self._client = client
        self._namespaces = tuple(namespaces)
        self._observer = observer
        self._watch = watch
        self._probes = probes
        self._redactor = redactor
        self._clock = clock
        self._show = show
        self._history = History()
        self._ends_s = 0.0
        self._is_first = True
        self._shown: Findings | None = None

    async def reconcile(self, _: str = _KEY) -> Outcome:
        """Read the resources, ask the sidecars, and show what changed."""
        await self._require_workloads()
        self._watch.follow(ObjectRef(GROUP, kind, name, "") for kind in kinds() for name in self._namespaces)
        snapshot = await self._read()
        if self._history.compare(snapshot, self._clock.now()):
            # Nothing more is to be expected of what was written before the first check.
            self._ends_s = self._clock.monotonic() + (0.0 if self._is_first else _WINDOW_S)
            self._is_first = False
        answers = await self._ask()
        if changed_refs(snapshot, await self._read()):
            return Requeue(0.0)  # the sidecars may have answered before or after that
        return self._judge(answers)

    async def _require_workloads(self) -> None:
        """Wait until the workloads are known; UNAVAILABLE if they cannot be observed."""
        await self._observer.synced()
        if failures := self._observer.failures():
            message = f"the workloads are not known: {'; '.join(failures)}"
            raise GovernorError(Kind.UNAVAILABLE, "workloads-not-observed", message)

    async def _read(self) -> Snapshot:
        snapshot = snapshot_of(await dapr_objects(self._client, self._namespaces))
        self._redactor.add(each.manifest for each in snapshot.values())
        return snapshot

    async def _ask(self) -> dict[str, Probed]:
        """Ask all sidecars: a later change may concern any of them."""
        pods = [pod for each in self._observer.workloads() for pod in live_pods(each)]
        answers = await self._probes.ask(pods, self._history.answers_before, lambda: False)
        return confirmed(answers, self._observer.workloads())

    def _judge(self, answers: dict[str, Probed]) -> Outcome:
        workloads, now = self._observer.workloads(), self._clock.now()
        is_over = self._clock.monotonic() >= self._ends_s
        situation = self._history.situation(answers, is_over=is_over)
        judged = {each.ref: judge_workload(each, situation) for each in workloads}
        pods = (one for several in judged.values() for one in several)
        is_concluded = self._history.record(pods, answers, now, is_over=is_over)
        found = {each.ref: findings_of(each, judged[each.ref], situation) for each in workloads}
        self._show_changed(findings.combine(self._history.refs, found, now))
        return Done() if is_concluded else Requeue(_PAUSE_S)

    def _show_changed(self, found: Findings) -> None:
        if self._shown is None or not self._shown.equals(found):
            self._shown = found
            self._show(found)


@contextlib.asynccontextmanager
async def open_observation(
    settings: Settings, clock: Clock, registry: Registry, checks: Checks
) -> AsyncIterator[Sequence[Component]]:
    """Connect to the cluster and yield the components of an observation, which prints what it finds."""

    def wake() -> None:
        reconciler.add(_KEY)

    def show(found: Findings) -> None:
        click.echo(as_json(found) if settings.output == "json" else as_table(found, clock.now()))

    access, redactor = await open_access(settings), Redactor()
    async with Transport(clock, registry=registry) as transport, open_session() as session:
        client = Client(transport, access)
        reader = SidecarReader(session, Client(transport, access, PROXY_LIMITS), Route(settings.sidecar_access))
        observer = Observer(client, settings.namespaces, clock=clock, on_change=wake)
        watch = ObjectWatch(client, "", "", clock=clock, on_change=wake)
        probes = Probes(client, reader, redactor, clock)
        observation = Observation(client, settings.namespaces, observer, watch, probes, redactor, clock, show)
        reconciler = Reconciler[str](
            observation.reconcile, name="observation", metrics=ReconcileMetrics(registry), clock=clock, backoff=_BACKOFF
        )
        resync = Resync(lambda: [_KEY], reconciler.add, settings.resync_interval, clock=clock)
        checks.ready("cluster", lambda: "; ".join(observer.failures()))
        wake()
        yield (
            Component("workloads", observer.run),
            Component("resources", watch.run),
            Component("observation", reconciler.run),
            Component("resync", resync.run),
        )
