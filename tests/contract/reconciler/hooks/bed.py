"""A module's hooks on a real API server. No controller runs there: tests end Jobs by writing their status."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from governor.kube.applyset import ApplySet, Owner, Settings
from governor.kube.client import Request
from governor.kube.objects import ApiResource, Object
from governor.process.clock import VirtualClock
from governor.reconciler.hooks import HookContext, HookResult, run_hooks
from governor.reconciler.kinds.module_instance import HookRecord, HookState
from governor.reconciler.render.request import Hook
from tests.contract.kube.applyset.bed import RecordingClient, exists

JOBS = ApiResource("batch", "v1", "Job", "jobs", namespaced=True)
PODS = ApiResource("", "v1", "Pod", "pods", namespaced=True)
TIMEOUT_S = 300.0
TIME = "2026-01-01T00:00:00Z"

_POD_SPEC = {"containers": [{"name": "main", "image": "example/one"}], "restartPolicy": "Never"}


class CrashError(Exception):
    """The simulated crash."""


class HookBed:
    """The hooks of one module, the records that the hub has of them, and a log of what is written in which order."""

    def __init__(self, client: RecordingClient, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.clock = VirtualClock()
        self.reference = "first"
        self.records: tuple[HookRecord, ...] = ()
        self.log: list[str] = []
        self.crash_at = ""
        """The entry of the log before which the program crashes; nothing is written then."""
        client.intercept = self._intercept

    @property
    def objects(self) -> ApplySet:
        settings = Settings("hooks", "hooks.example", default_namespace=self.namespace, single_reads=1)
        return ApplySet(self.client, Owner(f"{self.namespace}.hooks", self.namespace, "hooks"), settings)

    @property
    def states(self) -> dict[str, HookState]:
        """The last state of each hook, by the name of its object."""
        return {record.hook.rpartition(" ")[2]: record.state for record in self.records}

    async def run(self, hooks: Sequence[Hook], event: str = "pre-install") -> HookResult:
        """Run the hooks as a program that has just started, with the records of the hub."""
        context = HookContext(
            self.objects, self.client, self.namespace, self.clock, self.reference, TIMEOUT_S, self._save
        )
        result = await run_hooks(context, hooks, event, self.records)
        assert result.records == self.records
        return result

    async def complete(self, name: str) -> None:
        """Let a Job end with success."""
        conditions = [_condition("SuccessCriteriaMet"), _condition("Complete")]
        await self._set_status(JOBS, name, {"startTime": TIME, "completionTime": TIME, "conditions": conditions})

    async def fail(self, name: str) -> None:
        """Let a Job fail as if all of its pods had."""
        why = {"reason": "BackoffLimitExceeded", "message": "Job has reached the specified backoff limit"}
        conditions = [_condition("FailureTarget") | why, _condition("Failed") | why]
        await self._set_status(JOBS, name, {"startTime": TIME, "conditions": conditions})

    async def end_pod(self, name: str, phase: str) -> None:
        """Set the phase of a Pod."""
        await self._set_status(PODS, name, {"phase": phase})

    async def hold(self, name: str, *, held: bool = True) -> None:
        """Add a finalizer to a Job, or remove it."""
        change = {"metadata": {"finalizers": ["example.com/hold"] if held else None}}
        await self.client.patch(JOBS, name, self.namespace, change, manager="tests")
        self.log.clear()

    async def uid(self, name: str, resource: ApiResource = JOBS) -> str:
        return str((await self.client.get(resource, name, self.namespace))["metadata"]["uid"])

    async def exists(self, name: str, resource: ApiResource = JOBS) -> bool:
        return await exists(self.client, resource, name, self.namespace)

    async def _set_status(self, resource: ApiResource, name: str, status: Object) -> None:
        await self.client.patch(
            resource, name, self.namespace, {"status": status}, manager="tests", subresource="status"
        )
        self.log.clear()

    async def _save(self, records: tuple[HookRecord, ...]) -> None:
        changed = [record for record in records if record not in self.records]
        self._write(f"save {', '.join(f'{each.hook.split()[-1]} {each.state}' for each in changed)}".strip())
        self.records = records

    async def _intercept(self, request: Request, send: Callable[[Request], Awaitable[bytes]]) -> bytes:
        name = request.path.rpartition("/")[2]
        if request.method in {"PATCH", "DELETE"} and name != "hooks":  # which is the inventory
            self._write(f"{'apply' if request.method == 'PATCH' else 'delete'} {name}")
        return await send(request)

    def _write(self, entry: str) -> None:
        if entry == self.crash_at:
            self.crash_at = ""
            raise CrashError
        self.log.append(entry)


def job(name: str, weight: int = 0, *policies: str, events: str = "pre-install") -> Hook:
    spec = {"template": {"spec": _POD_SPEC}}
    return _hook("batch/v1", "Job", name, weight, policies, events, spec=spec)


def pod(name: str) -> Hook:
    return _hook("v1", "Pod", name, 0, (), "pre-install", spec=_POD_SPEC)


def config(name: str, weight: int = 0, *policies: str, events: str = "pre-install", **data: str) -> Hook:
    return _hook("v1", "ConfigMap", name, weight, policies, events, data=data)


def custom(kind: str, name: str) -> Hook:
    return _hook("example.com/v1", kind, name, 0, (), "pre-install")


def secret(name: str, **data: Any) -> Hook:
    return _hook("v1", "Secret", name, 0, (), "pre-install", stringData=data)


def role(name: str) -> Hook:
    return _hook("rbac.authorization.k8s.io/v1", "ClusterRole", name, 0, (), "pre-install", rules=[])


def placed(hook: Hook, namespace: str) -> Hook:
    """Return a hook whose chart sets its namespace."""
    metadata = {**hook.object["metadata"], "namespace": namespace}
    return msgspec.structs.replace(hook, object={**hook.object, "metadata": metadata})


def _hook(
    version: str, kind: str, name: str, weight: int, policies: Sequence[str], events: str, **content: Any
) -> Hook:
    manifest = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **content}
    return Hook(f"templates/{name}.yaml", manifest, tuple(events.split(",")), weight, tuple(policies))


def _condition(name: str) -> dict[str, str]:
    return {"type": name, "status": "True", "lastTransitionTime": TIME, "lastProbeTime": TIME}
