"""An agent with the ServiceAccount and the rules of its chart, and the API server's record of its requests.

The agent is assembled as the program does it, with leader election, joins a real server, and manages two namespaces:
one with workloads of each kind, whose sidecars are replayed, and one without any.
"""

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import aiohttp

from governor import yamltext
from governor.agent.main import Agent, open_agent
from governor.agent.platforms.kubernetes.home import open_elector
from governor.agent.platforms.kubernetes.permissions import Scope
from governor.agent.settings import Settings
from governor.domain.reports import Cause, Report, State, overall
from governor.kube.lease import Timing
from governor.process.clock import SystemClock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.telemetry.instruments import Registry
from governor.process.telemetry.metrics import program_registry
from governor.values.secret import Secret
from governor.wire.rest import TokenRequest
from testbed.kube.control_plane import ControlPlane
from testbed.kube.pki import kubeconfig, put
from testbed.server import Server
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
_OK, _CREATED, _FORBIDDEN = 200, 201, 403
CLAIM_TTL_S = 3.0
"""For tests in which several holders of the claim follow each other, as long as all of them use it."""
TIMING = Timing(lease_duration_s=5, renew_deadline_s=4.0, retry_period_s=0.5)
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
        """Write a kubeconfig with the file ``token`` beside it, and return its path."""
        await self.write_token(directory)
        content = json.loads(kubeconfig(self._plane.url, self._plane.authority.certificate, ""))
        content["users"][0]["user"] = {"tokenFile": "token"}
        return put(directory / "agent.kubeconfig", json.dumps(content).encode())

    async def write_token(self, directory: Path) -> None:
        """Write a token that the API server issues for the ServiceAccount, as a kubelet does again and again."""
        token = await self._plane.request_token(self.namespace, NAME)
        put(directory / "token.next", token.encode()).replace(directory / "token")

    async def reject_tokens(self, rotated: Path | None = None) -> None:
        """Replace the ServiceAccount and wait until the API server rejects the tokens of the old one, as if expired.

        If a directory is given, its token is replaced before that.
        """
        old = Secret(await self._plane.request_token(self.namespace, NAME))
        account = next(each for each in self.manifests if each["kind"] == "ServiceAccount")
        await self._plane.kubectl("delete", "serviceaccount", NAME, f"--namespace={self.namespace}")
        await self._plane.kubectl("apply", "-f", "-", stdin=as_list([account]))
        if rotated is not None:
            await self.write_token(rotated)

        async def is_rejected() -> bool:
            review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": old.reveal()}}
            answer = await self._plane.ask("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review)
            return not answer["status"].get("authenticated", False)

        await until(is_rejected)

    def writes(self, directory: Path, after: int) -> list[str]:
        """Return what the token in a directory has written since the audit log had this size, as verb and resource."""
        claims = (directory / "token").read_text().split(".")[1]
        token_id = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["jti"]
        with (self._plane.directory / "audit.log").open("rb") as log:
            log.seek(after)
            events = [json.loads(line) for line in log if token_id.encode() in line and line.endswith(b"\n")]
        changed = [each for each in events if each["verb"] not in ("get", "list", "watch")]
        return [f"{each['verb']} {each['objectRef']['resource']}" for each in changed]

    def audit_size(self) -> int:
        """Return the size of the audit log."""
        return (self._plane.directory / "audit.log").stat().st_size


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
        self.directory = directory
        self._sequence = 0
        self._is_registered = False

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[Agent]:
        """Run the agent as the ServiceAccount; the first one joins."""
        async with self.replica() as replica:
            agent = await until(replica.leading)
            assert agent is not None
            yield agent

    @asynccontextmanager
    async def replica(self) -> AsyncIterator["Replica"]:
        """Run a replica of the agent as the ServiceAccount; the first one joins."""
        settings = Settings(
            platform="kubernetes",
            join_token=await self.join_token(),
            kubeconfig=await self.release.kubeconfig(self.directory),
            state_namespace=self.release.namespace,
            namespaces=self.release.managed,
            leader_election=True,
        )
        replica = Replica(settings)
        async with running(replica.run()):
            yield replica

    async def join_token(self) -> Secret | None:
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
        await self.apply(*resources, **policy)
        return await self.decided()

    async def apply(self, *resources: Mapping[str, Any], **policy: object) -> None:
        """Change the runtime's profile."""
        apply = {"preflight": "off", "verifyWindowSeconds": 30, **policy}
        await self.server.apply(profile("everything", *map(dict, resources), apply=apply), allow_deletions=True)
        self._sequence += 1

    async def decided(self) -> Report:
        """Return the report on the newest delivery once it is decided."""
        decided = await until(self._decided)
        assert decided is not None
        return decided

    async def until_verified(self) -> Report:
        """Wait until the newest delivery is verified, and return the report."""
        return await self._until_reported(lambda report: overall(report) is State.VERIFIED)

    async def until_failed(self, cause: Cause) -> Report:
        """Wait until the newest delivery has failed for one cause, and return the report."""
        return await self._until_reported(
            lambda report: overall(report) is State.FAILED and {each.cause for each in report.resources} == {cause}
        )

    async def _until_reported(self, is_expected: Callable[[Report], bool]) -> Report:
        async def matching() -> Report | None:
            report = await self._decided()
            return report if report and is_expected(report) else None

        found = await until(matching)
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


class Replica:
    """One process of the agent, which works while it leads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.agent: Agent | None = None
        """The agent while this replica leads."""

    async def leading(self) -> Agent | None:
        """Return the agent, or None while this replica does not lead."""
        return self.agent

    async def run(self) -> None:
        """Lead whenever the Lease is free."""
        async with open_elector(self._settings, SystemClock(), Registry(), TIMING) as elector:
            await elector.run(self._lead)

    async def _lead(self) -> None:
        registry = program_registry("agent", "tests")
        async with open_agent(self._settings, SystemClock(), registry, backoff=_BACKOFF) as agent:
            self.agent = agent
            try:
                async with asyncio.TaskGroup() as group:
                    for component in (agent.platform, agent.reconciler, agent.connection):
                        group.create_task(component.run())
            finally:
                self.agent = None


PROGRAM = f"""
import functools, sys
from governor.agent.platforms.kubernetes import home
from governor.cli.main import main
from governor.kube.applyset import inventory
from governor.kube.lease import Timing
inventory.CLAIM_TTL_S = {CLAIM_TTL_S}
home.open_elector = functools.partial(home.open_elector, timing={TIMING!r})
sys.exit(main())
"""


class ReplicaProcess(Server):
    """A replica as a process, with the timing of the tests."""

    def __init__(self, name: str, bed: AgentBed, join_token: Secret, **environment: str) -> None:
        super().__init__(name, bed.directory / name, ["health"])
        self._release = bed.release
        self._join_token = join_token
        self._environment = environment

    async def prepare(self) -> "ReplicaProcess":
        """Write its files, and return it."""
        put(self.directory / "join.token", self._join_token.reveal().encode())
        settings: dict[str, Any] = {
            "platform": "kubernetes",
            "kubeconfig": str(await self._release.kubeconfig(self.directory)),
            "state-namespace": self._release.namespace,
            "namespaces": list(self._release.managed),
            "leader-election": True,
            "join-token-file": str(self.directory / "join.token"),
        }
        put(self.directory / "agent.yaml", yamltext.dump(settings).encode())
        return self

    def environment(self) -> dict[str, str]:
        """Return the environment, with that of the test."""
        return {**super().environment(), **self._environment}

    def command(self) -> list[str]:
        """Return the command line."""
        listen = f"--health-listen=127.0.0.1:{self.ports['health']}"
        return [sys.executable, "-c", PROGRAM, "agent", f"--config={self.directory / 'agent.yaml'}", listen]

    async def is_ready(self) -> bool:
        """Return whether it reports itself ready."""
        try:
            return (await self._get("/readyz")).status == _OK
        except aiohttp.ClientError:
            return False

    async def is_leader(self) -> bool:
        """Return whether it holds the Lease."""
        return f'leader_election_master_status{{name="{NAME}"}} 1.0' in await (await self._get("/metrics")).text()

    async def _get(self, path: str) -> aiohttp.ClientResponse:
        url = f"http://127.0.0.1:{self.ports['health']}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            await response.read()
            return response
