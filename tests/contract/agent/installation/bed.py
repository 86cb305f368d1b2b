"""An agent with the ServiceAccount and the rules of its chart, and the API server's record of its requests.

The agent is assembled as the program does it, joins a real server, and manages two namespaces: one with workloads of
each kind, whose sidecars are replayed, and one without any.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from governor.agent.main import Agent, open_agent
from governor.agent.platforms.kubernetes.permissions import Scope
from governor.agent.settings import Settings
from governor.domain.reports import Report, State, overall
from governor.process.clock import SystemClock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.telemetry.metrics import program_registry
from governor.values.secret import Secret
from governor.wire.rest import TokenRequest
from testbed.kube.control_plane import ControlPlane
from testbed.kube.pki import kubeconfig, put
from testbed.waiting import until
from tests.contract.agent.platform.bed import Bed
from tests.contract.charts.bed import AGENT, Helm, as_list, manifests
from tests.contract.kube.reflector.bed import running
from tests.integration.server.bed import API_VERSION, ServerBed, profile

RUNTIME = "cluster-1"
NAME = AGENT.name
FINAL = (State.VERIFIED, State.FAILED, State.UNPROVEN)
POLICY = """
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, userGroups: [system:serviceaccounts]}
- {level: None}
"""
_CREATED, _FORBIDDEN = 201, 403
_BACKOFF = Backoff(initial_s=0.05, max_s=0.5)


class Need(NamedTuple):
    """A permission that a request needs; a subresource is ``RESOURCE/NAME``. ``name`` is that of a named object."""

    scope: Scope
    group: str
    resource: str
    verb: str
    name: str = ""

    @property
    def rule(self) -> dict[str, Any]:
        """The rule that grants exactly this."""
        named = {"resourceNames": [self.name]} if self.name else {}
        return {"apiGroups": [self.group], "resources": [self.resource], "verbs": [self.verb], **named}


def audit_flags(directory: Path) -> tuple[str, ...]:
    """Return the flags with which the API server records the requests of ServiceAccounts."""
    policy = put(directory / "audit-policy.yaml", POLICY.encode())
    return f"--audit-policy-file={policy}", f"--audit-log-path={directory / 'audit.log'}"


class Release:
    """The ServiceAccount and the rules of a release of the chart."""

    def __init__(self, plane: ControlPlane, helm: Helm, namespace: str, managed: tuple[str, ...]) -> None:
        self._plane = plane
        self.namespace = namespace
        self.managed = managed
        self._read_bytes = 0
        self._had: set[Need] = set()
        self._lacked: set[Need] = set()
        self._user = f"system:serviceaccount:{namespace}:{NAME}"
        value = f"namespaces={{{','.join(managed)}}}"
        kinds = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
        rendered = manifests(AGENT.render(helm, value, namespace=namespace))
        self.manifests = [each for each in rendered if each["kind"] in kinds]

    async def install(self, *without: Need) -> None:
        """Apply the rules except for some, and wait until they are in effect."""
        items = [self._reduced(each, without) for each in self.manifests]
        await self._plane.kubectl("apply", "-f", "-", stdin=as_list(items))
        for each in self.granted():
            await until(lambda: self._is_allowed(each, allowed=each not in without))  # noqa: B023 - awaited at once

    def granted(self) -> set[Need]:
        """Return what the rules of the chart allow."""
        return {
            need
            for each in self.manifests
            if "rules" in each
            for rule in each["rules"]
            for need in _needs(self._scope(each["metadata"].get("namespace", "")), rule)
        }

    def _reduced(self, manifest: Mapping[str, Any], without: Iterable[Need]) -> Mapping[str, Any]:
        if "rules" not in manifest:
            return manifest
        scope = self._scope(manifest["metadata"].get("namespace", ""))
        needs = [need for rule in manifest["rules"] for need in _needs(scope, rule) if need not in without]
        return {**manifest, "rules": [each.rule for each in needs]}

    def _scope(self, namespace: str) -> Scope:
        if namespace == self.namespace:
            return Scope.STATE
        assert namespace in ("", *self.managed), namespace
        return Scope.MANAGED if namespace else Scope.CLUSTER

    async def _is_allowed(self, need: Need, *, allowed: bool) -> bool:
        """Return whether the API server's authorizer knows the rules; it learns of changes by a watch."""
        places = {Scope.MANAGED: self.managed, Scope.STATE: (self.namespace,), Scope.CLUSTER: ("",)}[need.scope]
        answers = [await self._review(need, each) for each in places]
        return set(answers) == {allowed}

    async def _review(self, need: Need, namespace: str) -> bool:
        resource, _, subresource = need.resource.partition("/")
        attributes = {"group": need.group, "resource": resource, "subresource": subresource, "verb": need.verb}
        spec = {"user": self._user, "resourceAttributes": {**attributes, "namespace": namespace, "name": need.name}}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        answer = await self._plane.ask("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return bool(answer["status"]["allowed"])

    def requests(self) -> tuple[set[Need], set[Need]]:
        """Return the permissions that the requests of the ServiceAccount needed: those it had, and those it lacked."""
        with (self._plane.directory / "audit.log").open("rb") as log:
            log.seek(self._read_bytes)
            recorded, _, _ = log.read().rpartition(b"\n")
        self._read_bytes += len(recorded)
        for line in recorded.split(b"\n"):
            if self._user.encode() in line:
                self._add(json.loads(line))
        return self._had, self._lacked

    def _add(self, event: Mapping[str, Any]) -> None:
        if event["user"]["username"] != self._user or "resource" not in event.get("objectRef", {}):
            return
        need, status = self._needed(event), event.get("responseStatus", {}).get("code")
        is_allowed = event["annotations"]["authorization.k8s.io/decision"] == "allow"
        (self._had if is_allowed else self._lacked).add(need)
        if is_allowed and need.verb == "patch" and status in (_CREATED, _FORBIDDEN):
            # An apply that creates needs the verb create too, which is checked later.
            (self._had if status == _CREATED else self._lacked).add(need._replace(verb="create"))

    def _needed(self, event: Mapping[str, Any]) -> Need:
        ref = event["objectRef"]
        resource = "/".join(filter(None, (ref["resource"], ref.get("subresource", ""))))
        # The API server counts a Namespace as an object in itself.
        is_other = resource == "namespaces" and ref.get("name", "") not in (self.namespace, *self.managed)
        namespace, name = ("", ref["name"]) if is_other else (ref.get("namespace", ""), "")
        return Need(self._scope(namespace), ref.get("apiGroup", ""), resource, event["verb"], name)

    async def kubeconfig(self, directory: Path) -> Path:
        """Write a kubeconfig with a token that the API server issues for the ServiceAccount, and return its path."""
        token = await self._plane.request_token(self.namespace, NAME)
        content = kubeconfig(self._plane.url, self._plane.authority.certificate, token)
        return put(directory / "agent.kubeconfig", content)


def _needs(scope: Scope, rule: Mapping[str, Any]) -> Iterable[Need]:
    return (
        Need(scope, group, resource, verb, name)
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    )


class AgentBed:
    """A server, and the agent of one runtime with the permissions of a release."""

    def __init__(self, server: ServerBed, release: Release, directory: Path) -> None:
        self.server = server
        self.release = release
        self._directory = directory
        self._sequence = 0
        self._is_registered = False

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[Agent]:
        """Run the agent as the ServiceAccount; the first one joins."""
        settings = Settings(
            platform="kubernetes",
            join_token=await self._join_token(),
            kubeconfig=await self.release.kubeconfig(self._directory),
            state_namespace=self.release.namespace,
            namespaces=self.release.managed,
        )
        registry = program_registry("agent", "tests")
        async with (
            open_agent(settings, SystemClock(), registry, backoff=_BACKOFF) as agent,
            running(_run(agent)),
        ):
            yield agent

    async def _join_token(self) -> Secret | None:
        """Create the runtime and return a token to join as it; None if it exists."""
        if self._is_registered:
            return None
        self._is_registered = True
        spec = {"platform": "kubernetes", "namespaces": list(self.release.managed)}
        document = {"apiVersion": API_VERSION, "kind": "Runtime", "metadata": {"name": RUNTIME}, "spec": spec}
        await self.server.apply(document)
        async with self.server.client() as admin:
            return Secret((await admin.create_token(TokenRequest(runtime=RUNTIME))).text)

    async def deliver(self, *resources: Mapping[str, Any], **policy: object) -> Report:
        """Change the runtime's profile and return the report once it is decided."""
        apply = {"preflight": "off", "verifyWindowSeconds": 30, **policy}
        await self.server.apply(profile("everything", *map(dict, resources), apply=apply), allow_deletions=True)
        self._sequence += 1
        decided = await until(self._decided)
        assert decided is not None
        return decided

    async def until_verified(self) -> Report:
        """Wait until the newest delivery is verified, and return the report."""

        async def verified() -> Report | None:
            report = await self._decided()
            return report if report and overall(report) is State.VERIFIED else None

        found = await until(verified)
        assert found is not None
        return found

    async def _decided(self) -> Report | None:
        async with self.server.client() as admin:
            report = (await admin.runtime(RUNTIME)).report
        is_newest = report is not None and report.sequence == self._sequence
        return report if report and is_newest and overall(report) in FINAL else None


class World:
    """A cluster with an agent: one of its namespaces has workloads, the other none."""

    def __init__(self, agent: AgentBed, cluster: Bed, release: Release) -> None:
        self.agent = agent
        self.cluster = cluster
        self.release = release
        self.busy, self.quiet = release.managed

    async def deliver(self, *resources: Mapping[str, Any], **policy: object) -> Report:
        """Deliver resources for the namespace with workloads, and none for the other."""
        return await self.agent.deliver(*(at(self.busy, each) for each in resources), **policy)


NewWorld: TypeAlias = Callable[..., AbstractAsyncContextManager[World]]


def at(namespace: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest in a namespace."""
    return {**manifest, "metadata": {**manifest["metadata"], "namespace": namespace}}


async def _run(agent: Agent) -> None:
    async with asyncio.TaskGroup() as group:
        for component in (agent.platform, agent.reconciler, agent.connection):
            group.create_task(component.run())
