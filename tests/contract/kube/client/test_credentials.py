"""Authentication to a real API server with every kind of credential, and credential rotation."""

import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from governor.errors import GovernorError, Kind
from governor.kube.client import Client, Limits, Request, Transport
from governor.kube.config import kubeconfig
from governor.kube.config.access import Access, ClientCertificate, Impersonation, in_cluster
from governor.kube.config.credentials import FILE_TTL_S, MIN_RENEWAL_S
from governor.kube.objects import ApiResource
from governor.process.clock import VirtualClock
from governor.process.flowcontrol.limiter import Rate
from governor.process.proxy import Proxy
from governor.values.secret import Secret
from testbed.kube.control_plane import ControlPlane
from testbed.kube.pki import Pair, put
from testbed.kube.pki import kubeconfig as kubeconfig_of
from testbed.proxies.tunnels import TunnelProxy
from testbed.waiting import until
from tests.contract.kube.bed import account_of, admin_of, certificate_of

ACCOUNTS = ApiResource("", "v1", "ServiceAccount", "serviceaccounts", namespaced=True)
REVIEW = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}


async def user_info(client: Client) -> Any:
    """Return the user as which the server authenticates the client."""
    request = Request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=msgspec.json.encode(REVIEW))
    return msgspec.json.decode(await client.send(request))["status"]["userInfo"]


async def name_of(client: Client) -> str:
    return str((await user_info(client))["username"])


async def rejected(client: Client) -> GovernorError:
    with pytest.raises(GovernorError) as caught:
        await user_info(client)
    return caught.value


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def with_expiring_token(_shared_control_plane: ControlPlane) -> AsyncIterator[Client]:
    """A client whose token is accepted now and expires while the other tests of this module run.

    The server caches that it accepts a token for ten seconds.
    """
    plane, name = _shared_control_plane, f"expiring-{uuid.uuid4().hex[:8]}"
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    await plane.ask("POST", ACCOUNTS.path("default"), account)
    async with Transport() as transport:
        access = account_of(plane, await plane.expiring_token("default", name, 10.0))
        client = Client(transport, access, Limits(rate=Rate(per_s=5.0, burst=1)))
        assert await name_of(client) == f"system:serviceaccount:default:{name}"
        yield client


@pytest.fixture
async def account(client: Client, namespace: str) -> str:
    """The name of a service account without permissions."""
    manifest = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot", "namespace": namespace}}
    await client.create(ACCOUNTS, manifest, manager="tests")
    return "robot"


@pytest.fixture
def robot(namespace: str, account: str) -> str:
    """The user name of that service account."""
    return f"system:serviceaccount:{namespace}:{account}"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def virtual_transport(clock: VirtualClock) -> AsyncIterator[Transport]:
    """A transport on the test's virtual clock."""
    async with Transport(clock) as transport:
        yield transport


class TestKinds:
    async def test_a_certificate(self, client: Client) -> None:
        assert await name_of(client) == "testbed-admin"

    async def test_a_token(
        self, api: ControlPlane, transport: Transport, namespace: str, account: str, robot: str
    ) -> None:
        token = await api.request_token(namespace, account)
        assert await name_of(Client(transport, account_of(api, token))) == robot

    async def test_anonymous_is_rejected(self, api: ControlPlane, transport: Transport) -> None:
        error = await rejected(Client(transport, Access(api.url, api.authority.certificate)))
        assert error.kind in (Kind.DENIED, Kind.UNAUTHENTICATED)

    async def test_impersonation(self, api: ControlPlane, transport: Transport) -> None:
        user = Impersonation("ann", "7", ("dev", "ops"), (("example.com/scope", "some"), ("example.com/scope", "all")))
        access = msgspec.structs.replace(admin_of(api), impersonation=user)
        info = await user_info(Client(transport, access))
        assert (info["username"], info["uid"]) == ("ann", "7")
        assert {"dev", "ops"} <= set(info["groups"])
        assert info["extra"] == {"example.com/scope": ["some", "all"]}

    async def test_a_client_that_impersonates(self, client: Client, namespace: str, robot: str) -> None:
        """The server adds the groups of a service account; it may not do what the client's own user may."""
        impersonating = client.impersonating(robot)
        info = await user_info(impersonating)
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
        assert (info["username"], sorted(info["groups"])) == (robot, sorted(groups))
        with pytest.raises(GovernorError) as caught:
            await impersonating.get(ACCOUNTS, "default", namespace)
        assert caught.value.kind is Kind.DENIED
        assert f'User "{robot}" cannot get resource "serviceaccounts"' in caught.value.message
        assert await name_of(client) == "testbed-admin"

    async def test_an_impersonation_without_the_right_to_it_is_denied(
        self, api: ControlPlane, transport: Transport, namespace: str, account: str, robot: str
    ) -> None:
        client = Client(transport, account_of(api, await api.request_token(namespace, account)))
        error = await rejected(client.impersonating("ann"))
        assert error.kind is Kind.DENIED
        assert " as ann at " in error.message
        assert f'User "{robot}" cannot' in error.message

    async def test_a_kubeconfig_from_a_secret(self, api: ControlPlane, transport: Transport) -> None:
        access = kubeconfig.from_secret(kubeconfig_of(api.url, api.authority.certificate, api.admin))
        assert await name_of(Client(transport, access)) == "testbed-admin"

    async def test_a_kubeconfig_with_files_beside_it(
        self, api: ControlPlane, transport: Transport, tmp_path: Path
    ) -> None:
        put(tmp_path / "pki/ca.crt", api.authority.certificate)
        api.admin.put(tmp_path / "pki", "admin")
        whole = json.loads(kubeconfig_of(api.url, api.authority.certificate, "unused"))
        whole["clusters"][0]["cluster"] = {"server": f"{api.url}/", "certificate-authority": "pki/ca.crt"}
        whole["users"][0]["user"] = {"client-certificate": "pki/admin.crt", "client-key": "pki/admin.key"}
        file = put(tmp_path / "config", json.dumps(whole).encode())
        assert await name_of(Client(transport, kubeconfig.load(file))) == "testbed-admin"

    async def test_the_service_account_of_a_pod(
        self, api: ControlPlane, transport: Transport, tmp_path: Path, namespace: str, account: str, robot: str
    ) -> None:
        put(tmp_path / "ca.crt", api.authority.certificate)
        put(tmp_path / "token", (await api.request_token(namespace, account)).encode())
        put(tmp_path / "namespace", namespace.encode())
        host, _, port = api.url.removeprefix("https://").partition(":")
        access = in_cluster({"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}, tmp_path)
        assert await name_of(Client(transport, access)) == robot
        assert access.namespace == namespace

    async def test_insecure_skip_tls_verify(
        self, api: ControlPlane, transport: Transport, namespace: str, account: str, robot: str
    ) -> None:
        token = Secret(await api.request_token(namespace, account))
        assert await name_of(Client(transport, Access(api.url, insecure=True, token=token))) == robot


class TlsTunnelProxy(TunnelProxy):
    """A proxy that serves TLS with a certificate of the cluster's authority."""

    def __init__(self, api: ControlPlane) -> None:
        super().__init__()
        self._tls = api.authority.server_context()


class TestConnections:
    async def test_through_a_proxy(self, api: ControlPlane, transport: Transport) -> None:
        async with TunnelProxy() as proxy:
            for authorization in (None, Secret("Basic bWU6aHVudGVyMg==")):
                access = msgspec.structs.replace(admin_of(api), proxy=Proxy(proxy.url, authorization))
                client = Client(transport, access)
                assert [await name_of(client) for _ in range(3)] == ["testbed-admin"] * 3
            assert proxy.targets == [api.url.removeprefix("https://")] * 2

    async def test_through_a_tls_proxy(self, api: ControlPlane, transport: Transport) -> None:
        async with TlsTunnelProxy(api) as proxy:
            access = msgspec.structs.replace(admin_of(api), proxy=Proxy(proxy.url))
            assert await name_of(Client(transport, access)) == "testbed-admin"
            assert (proxy.url[:5], len(proxy.targets)) == ("https", 1)

    async def test_a_proxy_that_is_down_is_unreachable(self, api: ControlPlane, transport: Transport) -> None:
        async with TunnelProxy() as proxy:
            access = msgspec.structs.replace(admin_of(api), proxy=Proxy(proxy.url))
        assert (await rejected(Client(transport, access))).code == "kube-unreachable"

    async def test_the_server_certificate_must_have_the_tls_server_name(
        self, api: ControlPlane, transport: Transport
    ) -> None:
        right = msgspec.structs.replace(admin_of(api), tls_server_name="kubernetes.default.svc")
        assert await name_of(Client(transport, right)) == "testbed-admin"
        wrong = msgspec.structs.replace(admin_of(api), tls_server_name="other.example")
        error = await rejected(Client(transport, wrong))
        assert (error.kind, error.code) == (Kind.UNAUTHENTICATED, "kube-tls-untrusted")


class TestTokens:
    async def test_an_expired_token_is_rejected(
        self, api: ControlPlane, transport: Transport, namespace: str, account: str
    ) -> None:
        token = await api.expiring_token(namespace, account, -1.0)
        error = await rejected(Client(transport, account_of(api, token)))
        assert error.kind is Kind.UNAUTHENTICATED
        assert token not in str(error)

    async def test_a_rotated_token_file_is_read_when_the_old_token_is_rejected(
        self, api: ControlPlane, transport: Transport, tmp_path: Path, namespace: str, account: str, robot: str
    ) -> None:
        file = put(tmp_path / "token", (await api.expiring_token(namespace, account, -1.0)).encode())
        client = Client(transport, Access(api.url, api.authority.certificate, token=file))
        assert (await rejected(client)).kind is Kind.UNAUTHENTICATED
        put(file, (await api.request_token(namespace, account)).encode())
        assert await name_of(client) == robot

    async def test_a_rotated_token_file_is_read_before_the_old_token_expires(
        self,
        api: ControlPlane,
        virtual_transport: Transport,
        clock: VirtualClock,
        tmp_path: Path,
        client: Client,
        namespace: str,
    ) -> None:
        for name in ("first", "second"):
            manifest = {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": name, "namespace": namespace},
            }
            await client.create(ACCOUNTS, manifest, manager="tests")
        file = put(tmp_path / "token", (await api.request_token(namespace, "first")).encode())
        rotating = Client(virtual_transport, Access(api.url, api.authority.certificate, token=file))
        assert await name_of(rotating) == f"system:serviceaccount:{namespace}:first"
        put(file, (await api.request_token(namespace, "second")).encode())
        assert await name_of(rotating) == f"system:serviceaccount:{namespace}:first"
        await clock.advance(FILE_TTL_S)
        assert await name_of(rotating) == f"system:serviceaccount:{namespace}:second"


class TestCertificates:
    def files(self, pair: Pair, directory: Path) -> ClientCertificate:
        return ClientCertificate(*pair.put(directory, "user"))

    async def test_an_expired_certificate_is_renewed_from_its_files(
        self, api: ControlPlane, transport: Transport, tmp_path: Path
    ) -> None:
        certificate = self.files(api.authority.issue("ann", valid_for_s=-60.0), tmp_path)
        client = Client(transport, Access(api.url, api.authority.certificate, certificate))
        assert (await rejected(client)).kind in (Kind.UNAUTHENTICATED, Kind.UNAVAILABLE)
        self.files(api.authority.issue("ann"), tmp_path)
        assert await name_of(client) == "ann"

    async def test_a_rotated_certificate_is_used_after_the_ttl(
        self, api: ControlPlane, virtual_transport: Transport, clock: VirtualClock, tmp_path: Path
    ) -> None:
        certificate = self.files(api.authority.issue("ann"), tmp_path)
        client = Client(virtual_transport, Access(api.url, api.authority.certificate, certificate))
        assert await name_of(client) == "ann"
        self.files(api.authority.issue("bob"), tmp_path)
        await clock.advance(FILE_TTL_S)
        assert await name_of(client) == "bob"

    async def test_credentials_of_every_kind_are_swapped_in_place(
        self, api: ControlPlane, transport: Transport, namespace: str, account: str, robot: str
    ) -> None:
        client = Client(transport, admin_of(api))
        token = account_of(api, await api.request_token(namespace, account))
        names = [await name_of(client)]
        for access in (token, admin_of(api), token):
            client.update_access(access)
            names.append(await name_of(client))
        assert names == ["testbed-admin", robot, "testbed-admin", robot]

    async def test_users_of_one_cluster_do_not_share_connections(self, api: ControlPlane, transport: Transport) -> None:
        certificates = {name: certificate_of(api.authority.issue(name)) for name in ("ann", "bob")}
        clients = {
            name: Client(transport, Access(api.url, api.authority.certificate, certificate))
            for name, certificate in certificates.items()
        }
        for _ in range(2):
            assert {name: await name_of(client) for name, client in clients.items()} == {"ann": "ann", "bob": "bob"}


class TestPlugins:
    def config(self, api: ControlPlane, directory: Path) -> Path:
        plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./login", "interactiveMode": "Never"}
        whole = json.loads(kubeconfig_of(api.url, api.authority.certificate, "unused"))
        whole["users"][0]["user"] = {"exec": plugin}
        script = directory / "login"
        script.write_text(f"#!/bin/sh\necho hello >&2\necho run >>{directory}/runs\ncat {directory}/output\n")
        script.chmod(0o700)
        return put(directory / "config", json.dumps(whole).encode())

    def returns(self, directory: Path, **status: str) -> None:
        output = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
        put(directory / "output", json.dumps(output).encode())

    async def test_a_plugins_token_is_used_and_renewed_when_rejected(
        self,
        api: ControlPlane,
        virtual_transport: Transport,
        clock: VirtualClock,
        tmp_path: Path,
        namespace: str,
        account: str,
        robot: str,
    ) -> None:
        client = Client(virtual_transport, kubeconfig.load(self.config(api, tmp_path)))
        self.returns(tmp_path, token=await api.expiring_token(namespace, account, -1.0))
        assert (await rejected(client)).kind is Kind.UNAUTHENTICATED
        self.returns(tmp_path, token=await api.request_token(namespace, account))
        await clock.advance(MIN_RENEWAL_S)
        assert await name_of(client) == robot
        assert await name_of(client) == robot
        assert (tmp_path / "runs").read_text().count("run") == 2

    async def test_a_plugins_certificate_is_used(self, api: ControlPlane, transport: Transport, tmp_path: Path) -> None:
        ann = api.authority.issue("ann")
        client = Client(transport, kubeconfig.load(self.config(api, tmp_path)))
        self.returns(tmp_path, clientCertificateData=ann.certificate.decode(), clientKeyData=ann.key.decode())
        assert await name_of(client) == "ann"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_token_that_expires_during_use_is_unauthenticated(with_expiring_token: Client) -> None:
    async def is_rejected() -> bool:
        try:
            await name_of(with_expiring_token)
        except GovernorError as error:
            assert error.kind is Kind.UNAUTHENTICATED  # noqa: PT017 - raising is optional
            return True
        return False

    await until(is_rejected, within_s=120.0)
