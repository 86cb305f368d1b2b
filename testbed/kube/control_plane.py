"""A Kubernetes control plane on loopback: etcd and kube-apiserver, and on request what makes objects act.

It keeps its objects while it is stopped and started again, not when the machine goes down: etcd does not wait for
the disk. Nodes are the business of ``fake_nodes``.
"""

import asyncio
import json
import ssl
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import aiohttp

from testbed.kube.pki import ISSUER, Authority, Pair, TokenKey, kubeconfig, put
from testbed.server import Server
from toolchain.errors import TestbedError

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
_LOOPBACK = "127.0.0.1"
_SERVICES = "10.96.0.0/16"
_FIRST_SERVICE = "10.96.0.1"
_ANSWER_WITHIN_S = 60.0
_PROBE_WITHIN_S = 5.0
# Many starts at once on a small machine take many times as long as one alone.
_READY_WITHIN_S = 120.0
# The API server accepts a token until a minute after its end, to allow for clocks that differ.
_LEEWAY_S = 60.0


@dataclass(frozen=True)
class Options:
    """What a control plane has beyond etcd and kube-apiserver."""

    controllers: bool = False
    """Whether kube-controller-manager runs: without it no Deployment gets pods and no namespace ever ends."""
    scheduler: bool = False
    """Whether kube-scheduler runs: without it no pod gets a node."""
    address: str = _LOOPBACK
    """Where kube-apiserver listens: on loopback, or for real nodes and their pods where they reach it."""
    watch_cache: bool = True
    """Whether the API server remembers what happened: without, a compaction of etcd ends old versions at once (410)."""
    api_flags: tuple[str, ...] = ()
    """Further flags of kube-apiserver; the last of a kind counts."""


class Etcd(Server):
    """One member that is the whole cluster."""

    def __init__(self, binary: Path, directory: Path) -> None:
        super().__init__("etcd", directory, ["client", "peer"])
        self._binary = binary

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return f"http://127.0.0.1:{self.ports['client']}"

    def command(self) -> list[str]:
        """The member without waiting for the disk: its data outlives the process, which is enough."""
        peer = f"http://127.0.0.1:{self.ports['peer']}"
        settings = {
            "name": "testbed",
            "data-dir": self.directory / "data",
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"testbed={peer}",
            "unsafe-no-fsync": "true",
            "log-level": "warn",
        }
        return [str(self._binary), *_flags(settings)]

    async def is_ready(self) -> bool:
        """Whether it has a leader, which is itself."""
        return await probe(f"{self.url}/readyz")

    async def compact(self) -> int:
        """Forget all revisions but the newest; return that. A watch may still begin at the one before it."""
        head = (await _ask("POST", f"{self.url}/v3/kv/range", {"key": "AA=="}))["header"]
        await _ask("POST", f"{self.url}/v3/kv/compaction", {"revision": head["revision"], "physical": True})
        return int(head["revision"])


class ApiServer(Server):
    """kube-apiserver with certificates, tokens and RBAC as in real clusters."""

    ready_within_s: ClassVar[float] = _READY_WITHIN_S

    def __init__(
        self, binary: Path, directory: Path, etcd: Etcd, authority: Authority, tokens: TokenKey, options: Options
    ) -> None:
        super().__init__("kube-apiserver", directory, ["https"])
        self._binary = binary
        self._etcd = etcd
        self._options = options
        self._trust = authority.client_context()
        self.authority = put(directory / "ca.crt", authority.certificate)
        self.token_key = put(directory / "tokens.key", tokens.private)
        self._token_public = put(directory / "tokens.pub", tokens.public)
        self._serving = authority.issue_serving(options.address, _FIRST_SERVICE).put(directory, "serving")
        self._to_kubelets = authority.issue("kube-apiserver", groups=["system:masters"]).put(directory, "to-kubelets")

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"https://{self._options.address}:{self.ports['https']}"

    def serve_with(self, pair: Pair) -> None:
        """Put another serving certificate in place; it takes that up by itself some time later."""
        pair.put(self.directory, "serving")

    def command(self) -> list[str]:
        """Only what loopback needs; the rest is as Kubernetes sets it."""
        certificate, key = self._serving
        to_kubelets, to_kubelets_key = self._to_kubelets
        settings = {
            "etcd-servers": self._etcd.url,
            "bind-address": self._options.address,
            "secure-port": self.ports["https"],
            "tls-cert-file": certificate,
            "tls-private-key-file": key,
            "client-ca-file": self.authority,
            "kubelet-certificate-authority": self.authority,
            "kubelet-client-certificate": to_kubelets,
            "kubelet-client-key": to_kubelets_key,
            "kubelet-preferred-address-types": "InternalIP",
            "allow-privileged": "true",
            "authorization-mode": "Node,RBAC",
            "service-account-issuer": ISSUER,
            "service-account-key-file": self._token_public,
            "service-account-signing-key-file": self.token_key,
            "service-account-extend-token-expiration": "false",
            "service-cluster-ip-range": _SERVICES,
            "etcd-compaction-interval": "0",  # history ends when a test says so
            "watch-cache": str(self._options.watch_cache).lower(),
        }
        if self._options.address == _LOOPBACK:
            settings["endpoint-reconciler-type"] = "none"  # no pod will ever look for it
        if not self._options.controllers:
            # Nobody makes the accounts without which pods would be refused.
            settings["disable-admission-plugins"] = "ServiceAccount"
        return [str(self._binary), *_flags(settings), *self._options.api_flags]

    async def is_ready(self) -> bool:
        """Whether it says that everything of it is."""
        return await probe(f"{self.url}/readyz", self._trust)


class Companion(Server):
    """A program that works on the objects of an API server."""

    ready_within_s: ClassVar[float] = _READY_WITHIN_S

    def __init__(self, binary: Path, directory: Path, api: ApiServer, authority: Authority) -> None:
        super().__init__(binary.name, directory, ["https"])
        self._binary = binary
        self._api = api
        self._authority = authority
        self._trust = authority.client_context()

    @abstractmethod
    def settings(self) -> Mapping[str, object]:
        """Its flags beyond those that all such programs have."""

    def command(self) -> list[str]:
        """The program as an administrator: no accounts and roles of its parts have to be made first."""
        certificate, key = self._authority.issue_serving().put(self.directory, "serving")
        user = self._authority.issue(f"system:{self.name}", groups=["system:masters"])
        settings = {
            "kubeconfig": put(
                self.directory / "kubeconfig", kubeconfig(self._api.url, self._authority.certificate, user)
            ),
            "bind-address": "127.0.0.1",
            "secure-port": self.ports["https"],
            "tls-cert-file": certificate,
            "tls-private-key-file": key,
            "leader-elect": "false",
            "kube-api-qps": 300,
            "kube-api-burst": 500,
            **self.settings(),
        }
        return [str(self._binary), *_flags(settings)]

    async def is_ready(self) -> bool:
        """Whether it runs; what it does takes a little longer to begin."""
        return await probe(f"https://127.0.0.1:{self.ports['https']}/healthz", self._trust)


class ControllerManager(Companion):
    """kube-controller-manager: deployments, replica sets, garbage, namespaces and so on."""

    def settings(self) -> Mapping[str, object]:
        """What it needs to publish the authority to all namespaces."""
        return {"root-ca-file": self._api.authority, "service-account-private-key-file": self._api.token_key}


class Scheduler(Companion):
    """kube-scheduler."""

    def settings(self) -> Mapping[str, object]:
        """It needs no more than the others."""
        return {}


class ControlPlane:
    """The servers of one cluster, and its administrator."""

    def __init__(self, binaries: Mapping[str, Path], directory: Path, options: Options | None = None) -> None:
        options = options or Options()
        self.directory = directory
        self.authority = Authority()
        self.tokens = TokenKey()
        self.admin = self.authority.issue("testbed-admin", groups=["system:masters"])
        self.etcd = Etcd(binaries["etcd"], directory / "etcd")
        self.api = ApiServer(
            binaries["kube-apiserver"],
            directory / "kube-apiserver",
            self.etcd,
            self.authority,
            self.tokens,
            options,
        )
        self.servers: list[Server] = [self.etcd, self.api]
        if options.controllers:
            self.servers.append(self._companion(ControllerManager, binaries["kube-controller-manager"]))
        if options.scheduler:
            self.servers.append(self._companion(Scheduler, binaries["kube-scheduler"]))
        self._kubectl = binaries["kubectl"]
        self._context = self.authority.client_context(self.admin)

    def _companion(self, kind: type[Companion], binary: Path) -> Companion:
        return kind(binary, self.directory / binary.name, self.api, self.authority)

    @property
    def url(self) -> str:
        """Where the API server answers."""
        return self.api.url

    @property
    def kubeconfig(self) -> Path:
        """The administrator's, as a file."""
        return put(self.directory / "admin.kubeconfig", kubeconfig(self.url, self.authority.certificate, self.admin))

    async def start(self) -> Self:
        """Start all servers, each when those before it are ready."""
        try:
            for server in self.servers:
                await server.start()
        except BaseException:
            await self.end()
            raise
        return self

    async def end(self) -> None:
        """End all servers at once: nobody needs what a graceful stop of them would take a second for."""
        for server in reversed(self.servers):
            await server.kill()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        """The decoded answer to one request of the administrator; a refusal is an error."""
        return await _ask(method, self.url + path, body, self._context)

    async def request_token(self, namespace: str, account: str, expires_in_s: int = 3600) -> str:
        """A token as the API server issues it: it refuses to make one for less than ten minutes."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        answer = await self.ask("POST", path, {**body, "spec": {"expirationSeconds": expires_in_s}})
        return str(answer["status"]["token"])

    async def expiring_token(self, namespace: str, account: str, accepted_for_s: float) -> str:
        """A token that the API server begins to refuse so soon; not at all with a negative number.

        One that it has seen it may accept for ten seconds longer: so long it remembers its own answer.
        """
        described = await self.ask("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}")
        return self.tokens.sign(described, time.time() - _LEEWAY_S + accepted_for_s)

    async def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """What kubectl prints to the administrator."""
        argv = [str(self._kubectl), f"--kubeconfig={self.kubeconfig}", *arguments]
        pipe = asyncio.subprocess.PIPE
        surroundings = {"HOME": str(self.directory)}
        process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=pipe, env=surroundings)
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            printed, complaints = await process.communicate(stdin.encode())
        if process.returncode != 0:
            raise TestbedError(f"kubectl {' '.join(arguments)} failed: {complaints.decode()}")
        return printed.decode()


def _flags(settings: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in settings.items()]


async def probe(url: str, context: ssl.SSLContext | None = None) -> bool:
    """Whether a GET succeeds."""
    try:
        async with asyncio.timeout(_PROBE_WITHIN_S), _answer("GET", url, None, context) as response:
            return response.status == 200
    except (OSError, TimeoutError, aiohttp.ClientError):
        return False


async def _ask(method: str, url: str, body: object = None, context: ssl.SSLContext | None = None) -> Any:
    """The decoded answer; a refusal is an error."""
    async with asyncio.timeout(_ANSWER_WITHIN_S), _answer(method, url, body, context) as response:
        text = await response.text()
    if response.status >= 400:
        raise TestbedError(f"{method} {url} was answered with {response.status}: {text}")
    return json.loads(text)


@asynccontextmanager
async def _answer(
    method: str, url: str, body: object, context: ssl.SSLContext | None
) -> AsyncIterator[aiohttp.ClientResponse]:
    """One request on a connection of its own: tests of one session run in many event loops."""
    async with aiohttp.ClientSession() as session, session.request(method, url, json=body, ssl=context or True) as got:
        yield got
