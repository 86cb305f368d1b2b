"""A Kubernetes control plane on loopback: etcd, kube-apiserver, and optionally controller manager and scheduler.

Objects survive a restart of the servers, but not of the machine: etcd does not sync to disk.
"""

import asyncio
import json
import ssl
import tempfile
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
# Concurrent starts on a small machine take many times as long as one.
_READY_WITHIN_S = 120.0
# The API server accepts a token until a minute after it expires, to allow for clock skew.
_LEEWAY_S = 60.0


@dataclass(frozen=True)
class Options:
    """Options of a control plane."""

    controllers: bool = False
    """Whether kube-controller-manager runs: without it Deployments get no pods and namespaces are never deleted."""
    scheduler: bool = False
    """Whether kube-scheduler runs: without it no pod gets a node."""
    address: str = _LOOPBACK
    """Where kube-apiserver listens: loopback, or an address that real nodes and their pods reach."""
    watch_cache: bool = True
    """Whether the API server has its watch cache: without, old versions expire (410) as soon as etcd is compacted."""
    api_flags: tuple[str, ...] = ()
    """Further flags of kube-apiserver; they win over the defaults."""


class Etcd(Server):
    """A single-member etcd."""

    def __init__(self, binary: Path, directory: Path) -> None:
        super().__init__("etcd", directory, ["client", "peer"])
        self._binary = binary

    @property
    def url(self) -> str:
        """The client URL."""
        return f"http://127.0.0.1:{self.ports['client']}"

    def command(self) -> list[str]:
        """Return the command line, without fsync: data must outlive the process only."""
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
        """Return whether the member has elected itself."""
        return await probe(f"{self.url}/readyz")

    async def compact(self) -> int:
        """Compact to the newest revision and return it. A watch may still start at the one before."""
        head = (await _request("POST", f"{self.url}/v3/kv/range", {"key": "AA=="}))["header"]
        await _request("POST", f"{self.url}/v3/kv/compaction", {"revision": head["revision"], "physical": True})
        return int(head["revision"])


class ApiServer(Server):
    """kube-apiserver with certificates, tokens and RBAC as in a production cluster."""

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
        """The server's URL."""
        return f"https://{self._options.address}:{self.ports['https']}"

    def serve_with(self, pair: Pair) -> None:
        """Replace the serving certificate; the server reloads it some time later."""
        pair.put(self.directory, "serving")

    def command(self) -> list[str]:
        """Return the command line; flags that loopback does not need keep Kubernetes' defaults."""
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
            "etcd-compaction-interval": "0",  # tests compact explicitly
            "watch-cache": str(self._options.watch_cache).lower(),
        }
        if self._options.address == _LOOPBACK:
            settings["endpoint-reconciler-type"] = "none"  # no pod connects to it
        if not self._options.controllers:
            # Without the controller manager there are no default accounts, and the plugin would reject pods.
            settings["disable-admission-plugins"] = "ServiceAccount"
        return [str(self._binary), *_flags(settings), *self._options.api_flags]

    def environment(self) -> dict[str, str]:
        """Collect garbage less often, which saves a tenth of the CPU time for 130 MB of memory."""
        return {**super().environment(), "GOGC": "400"}

    async def is_ready(self) -> bool:
        """Return whether ``/readyz`` succeeds."""
        return await probe(f"{self.url}/readyz", self._trust)


class Companion(Server):
    """A control plane program that is a client of the API server."""

    ready_within_s: ClassVar[float] = _READY_WITHIN_S

    def __init__(self, binary: Path, directory: Path, api: ApiServer, authority: Authority) -> None:
        super().__init__(binary.name, directory, ["https"])
        self._binary = binary
        self._api = api
        self._authority = authority
        self._trust = authority.client_context()

    @abstractmethod
    def settings(self) -> Mapping[str, object]:
        """Return the flags beyond those of every companion."""

    def command(self) -> list[str]:
        """Return the command line; the program runs as administrator, so it needs no roles."""
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
        """Return whether the program is healthy; its controllers start a little later."""
        return await probe(f"https://127.0.0.1:{self.ports['https']}/healthz", self._trust)


class ControllerManager(Companion):
    """kube-controller-manager."""

    def settings(self) -> Mapping[str, object]:
        """Return the files with which it publishes the authority and signs tokens."""
        return {"root-ca-file": self._api.authority, "service-account-private-key-file": self._api.token_key}


class Scheduler(Companion):
    """kube-scheduler."""

    def settings(self) -> Mapping[str, object]:
        """Return no further flags."""
        return {}


class ControlPlane:
    """The servers of one control plane, used as its administrator."""

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
        """The API server's URL."""
        return self.api.url

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig file."""
        return put(self.directory / "admin.kubeconfig", kubeconfig(self.url, self.authority.certificate, self.admin))

    async def start(self) -> Self:
        """Start all servers, each after the previous one is ready."""
        try:
            for server in self.servers:
                await server.start()
        except BaseException:
            await self.end()
            raise
        return self

    async def end(self) -> None:
        """Kill all servers: a graceful stop would take longer and save nothing."""
        for server in reversed(self.servers):
            await server.kill()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request as the administrator and return the decoded response; raise if it fails."""
        return await _request(method, self.url + path, body, self._context)

    async def request_token(self, namespace: str, account: str, expires_in_s: int = 3600) -> str:
        """Return a token issued by the API server, which rejects lifetimes under ten minutes."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        answer = await self.ask("POST", path, {**body, "spec": {"expirationSeconds": expires_in_s}})
        return str(answer["status"]["token"])

    async def expiring_token(self, namespace: str, account: str, accepted_for_s: float) -> str:
        """Return a token that the API server accepts for this long; with a negative number, never.

        A token already used may be accepted for ten seconds longer, since the server caches its decision.
        """
        service_account = await self.ask("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}")
        return self.tokens.sign(service_account, time.time() - _LEEWAY_S + accepted_for_s)

    async def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """Run kubectl as the administrator and return its output.

        Each run discovers the server's kinds itself: a cached list lacks the categories of kinds installed since.
        """
        argv = [str(self._kubectl), f"--kubeconfig={self.kubeconfig}", *arguments]
        pipe = asyncio.subprocess.PIPE
        with tempfile.TemporaryDirectory(prefix="kubectl-", dir=self.directory) as cache:
            environment = {"HOME": str(self.directory), "KUBECACHEDIR": cache}
            process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                stdout, stderr = await process.communicate(stdin.encode())
        if process.returncode != 0:
            raise TestbedError(f"kubectl {' '.join(arguments)} failed: {stderr.decode()}")
        return stdout.decode()


def _flags(settings: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in settings.items()]


async def probe(url: str, context: ssl.SSLContext | None = None) -> bool:
    """Return whether a GET is answered with 200."""
    try:
        async with asyncio.timeout(_PROBE_WITHIN_S), _response("GET", url, None, context) as response:
            return response.status == 200
    except (OSError, TimeoutError, aiohttp.ClientError):
        return False


async def _request(method: str, url: str, body: object = None, context: ssl.SSLContext | None = None) -> Any:
    """Return the decoded response; raise if it is an error."""
    async with asyncio.timeout(_ANSWER_WITHIN_S), _response(method, url, body, context) as response:
        text = await response.text()
    if response.status >= 400:
        raise TestbedError(f"{method} {url} was answered with {response.status}: {text}")
    return json.loads(text)


@asynccontextmanager
async def _response(
    method: str, url: str, body: object, context: ssl.SSLContext | None
) -> AsyncIterator[aiohttp.ClientResponse]:
    """Send a request on a new connection: the tests of one session run in many event loops."""
    async with aiohttp.ClientSession() as session, session.request(method, url, json=body, ssl=context or True) as got:
        yield got
