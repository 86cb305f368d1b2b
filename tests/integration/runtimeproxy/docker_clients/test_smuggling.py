"""Requests that the proxy and dockerd could understand differently are refused, or understood as dockerd does."""

import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from testbed.cri.runtime_proxy import RuntimeProxy
from tests.integration.runtimeproxy.docker_clients.bed import ProxiedBed
from tests.integration.runtimeproxy.docker_clients.raw import END, chunked, container, raw_connection, request
from tests.integration.runtimeproxy.test_policies import write

SHARES: Final = 333
"""What the policy sets."""
POD: Final = {
    "io.kubernetes.pod.name": "web",
    "io.kubernetes.pod.namespace": "shop",
    "io.kubernetes.pod.uid": "uid-1",
}
SANDBOX: Final = {**POD, "io.kubernetes.docker.type": "podsandbox"}
CONTAINER: Final = {**POD, "io.kubernetes.docker.type": "container", "io.kubernetes.container.name": "app"}
INNER: Final = b"GET /_ping HTTP/1.1\r\nHost: docker\r\n\r\n"
CREATE: Final = b"POST /v1.41/containers/create HTTP/1.1\r\nHost: docker\r\nContent-Type: application/json\r\n"
CREATE_LINE: Final = "POST /v1.41/containers/create"
HEADS: Final = {
    "length and chunks": CREATE + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + INNER,
    "two lengths": CREATE + b"Content-Length: 0\r\nContent-Length: 38\r\n\r\n" + INNER,
    "list of lengths": CREATE + b"Content-Length: 38, 0\r\n\r\n" + INNER,
    "signed length": CREATE + b"Content-Length: +38\r\n\r\n" + INNER,
    "hexadecimal length": CREATE + b"Content-Length: 0x26\r\n\r\n" + INNER,
    "long length": CREATE + b"Content-Length: 99999999999999999999\r\n\r\n" + INNER,
    "empty length": CREATE + b"Content-Length: \r\n\r\n" + INNER,
    "unknown coding": CREATE + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + INNER,
    "two codings": CREATE + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + INNER,
    "repeated coding": CREATE + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + INNER,
    "coding after a vertical tab": CREATE + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n" + INNER,
    "coding in HTTP/1.0": CREATE.replace(b"1.1", b"1.0", 1) + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + INNER,
    "space before the colon": CREATE + b"Content-Length : 38\r\n\r\n" + INNER,
    "folded line": CREATE + b"X-Folded: a\r\n Content-Length: 38\r\n\r\n" + INNER,
    "line without a colon": CREATE + b"Content-Length\r\n\r\n" + INNER,
    "bare LF": CREATE + b"X: y\nContent-Length: 38\r\n\r\n" + INNER,
    "bare CR": CREATE + b"X: y\rContent-Length: 38\r\n\r\n" + INNER,
    "LF at the end of the head": CREATE.replace(b"\r\n", b"\n") + b"\n" + INNER,
    "NUL in a value": CREATE + b"X: a\0b\r\n\r\n" + INNER,
    "space in the name": CREATE + b"Content Length: 38\r\n\r\n" + INNER,
    "space in the target": b"POST /v1.41/containers/create x HTTP/1.1\r\nHost: docker\r\n\r\n" + INNER,
    "two spaces": b"POST  /v1.41/containers/create HTTP/1.1\r\nHost: docker\r\n\r\n" + INNER,
    "no version": b"POST /v1.41/containers/create\r\nHost: docker\r\n\r\n" + INNER,
    "another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(64)) + END,
}
BODIES: Final = {
    "negative size": b"-1\r\n\r\n0\r\n\r\n",
    "size with a prefix": b"0x1\r\na\r\n0\r\n\r\n",
    "overflowing size": b"10000000000000000\r\na\r\n0\r\n\r\n",
    "chunk longer than its size": b"1\r\nab\r\n0\r\n\r\n",
    "no size": b"\r\na\r\n0\r\n\r\n",
    "LF after the size": b"1\na\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("sent", HEADS.values(), ids=HEADS.keys())
async def test_an_ambiguous_head_is_refused_and_ends_the_connection(proxied: ProxiedBed, sent: bytes) -> None:
    async with raw_connection(proxied.socket) as connection:
        await connection.send(sent)
        response = await connection.response()
        assert response.status == 400
        assert "malformed HTTP head" in response.message
        assert await connection.is_closed(), "the request that follows is not served"
    assert await proxied.dockerd.engine("GET", "/containers/json", query={"all": "1"}) == []


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
async def test_a_malformed_chunk_ends_the_connection(proxied: ProxiedBed, body: bytes) -> None:
    async with raw_connection(proxied.socket) as connection:
        head = CREATE + b"Transfer-Encoding: chunked" + END
        await connection.send(head, body + INNER)
        response = await connection.response()
        assert response.status == 400
        assert await connection.is_closed(), "the request that follows is not served"
    assert await proxied.dockerd.engine("GET", "/containers/json", query={"all": "1"}) == []


async def test_a_head_without_an_end_is_refused(proxied: ProxiedBed) -> None:
    async with raw_connection(proxied.socket) as connection:
        with suppress(ConnectionError):
            await connection.send(b"GET /_ping HTTP/1.1\r\n", *[b"X: " + b"y" * 10_000 + b"\r\n"] * 40)
        assert (await connection.response()).status == 431
    assert await proxied.cli("ps", "--quiet") == ""


class PolicyBed(NamedTuple):
    """A bed with a policy for the containers of one pod, whose sandbox exists."""

    proxied: ProxiedBed
    labels: dict[str, str]
    """Of a container that the policy concerns."""

    @property
    def socket(self) -> Path:
        """The proxy's socket."""
        return self.proxied.socket

    @property
    def image(self) -> str:
        """The image of all containers."""
        return self.proxied.image

    async def shares(self) -> list[int]:
        """Return the CPU shares of all containers except the sandbox."""
        engine = self.proxied.dockerd.engine
        listed = await engine("GET", "/containers/json", query={"all": "1"})
        inspected = [await engine("GET", f"/containers/{each['Id']}/json") for each in listed]
        return [each["HostConfig"]["CpuShares"] for each in inspected if each["Name"] != "/sandbox"]


@pytest.fixture
async def with_policy(proxied: ProxiedBed) -> AsyncIterator[PolicyBed]:
    """Yield the shared bed with a policy."""
    proxy: RuntimeProxy = proxied.proxy
    write(proxy, "shares", f"{{match: {{namespaces: [shop]}}, container: {{set: {{cpuShares: {SHARES}}}}}}}")
    await proxy.wait_for_policies(1)
    body = json.loads(container(proxied.image, Labels=SANDBOX))
    sandbox = (await proxied.engine("POST", "/containers/create", body, {"name": "sandbox"}))["Id"]
    yield PolicyBed(proxied, {**CONTAINER, "io.kubernetes.sandbox.id": sandbox})
    (proxy.policies / "shares.yaml").unlink()
    await proxy.wait_for_policies(0)


def body_of(bed: PolicyBed) -> bytes:
    """Return the body that creates a container that the policy concerns."""
    return container(bed.image, Labels=bed.labels, HostConfig={"CpuShares": 2})


async def test_no_spelling_of_the_target_avoids_a_policy(with_policy: PolicyBed) -> None:
    body, created = body_of(with_policy), 0
    for target in (
        *("/containers/create", "/v1.41/containers/create", "/v1.12/containers/create", "/v1.41/containers/create?"),
        *("/v1.41/containers/cre%61te", "/v1.41/%63ontainers/create", "/v1.41/containers%2Fcreate"),
        *(
            "/v1.41//containers/create",
            "/v1.41/./containers/create",
            "/v1.41/x/../containers/create",
            "//containers/create",
        ),
        *("http://docker/v1.41/containers/create", "HTTP://x/containers/create", "/v1.41/containers/create/"),
        *(
            "/v1.41/containers/create?name=a&name=b",
            "/v1.41/containers/create?name=c;name=d",
            "/%761.41/containers/create",
        ),
        *("/v1.41/containers/create#x", "/v1.41/containers/create%3Fname=e", "/v1.41/containers/create%00", "*"),
        *("/v1.41/v1.41/containers/create", "/v1/containers/create", "/v1.41./containers/create"),
    ):
        async with raw_connection(with_policy.socket) as connection:
            await connection.send(request(f"POST {target}", body))
            created += (await connection.response()).status == 201
    assert created >= 10
    assert set(await with_policy.shares()) == {SHARES}


async def test_no_form_of_the_request_avoids_a_policy(with_policy: PolicyBed) -> None:
    create = request(CREATE_LINE, body_of(with_policy))
    upgrade = "Connection: Upgrade", "Upgrade: tcp"
    coding = "Transfer-Encoding: CHUNKED"
    forms: list[tuple[bytes, tuple[int, ...]]] = [
        (request("GET /_ping") + create, (200, 201)),
        (request("GET /_ping", b"x" * 50) + create, (200, 201)),
        (request("GET /_ping", b"", coding) + chunked(b"y" * 50, 9) + create, (200, 201)),
        (request("GET /_ping", b"", *upgrade) + create, (200, 201)),
        (request("POST /v1.41/exec/none/start", b"{}", *upgrade) + create, (404, 201)),
        (request(CREATE_LINE, body_of(with_policy), *upgrade) + create, (201, 201)),
        (request(CREATE_LINE, b"", coding) + chunked(body_of(with_policy), 11) + create, (201, 201)),
        (request(CREATE_LINE, body_of(with_policy), "Connection: keep-alive, Content-Length") + create, (201, 201)),
    ]
    for sent, statuses in forms:
        async with raw_connection(with_policy.socket) as connection:
            await connection.send(sent)
            assert tuple([(await connection.response()).status for _ in statuses]) == statuses
    assert await with_policy.shares() == [SHARES] * sum(statuses.count(201) for _, statuses in forms)


async def test_a_name_like_an_api_version_does_not_avoid_a_policy(with_policy: PolicyBed) -> None:
    async with raw_connection(with_policy.socket) as connection:
        await connection.send(request("POST /containers/create?name=v1.2", body_of(with_policy)))
        await connection.send(request("POST /containers/v1.2/update", b'{"CpuShares": 5}'))
        assert [(await connection.response()).status for _ in range(2)] == [201, 200]
    assert await with_policy.shares() == [SHARES]


async def test_no_spelling_of_the_body_avoids_a_policy(with_policy: PolicyBed) -> None:
    labels, host = json.dumps(with_policy.labels), json.dumps({"CpuShares": 2})
    image = json.dumps(with_policy.image)
    bodies = (
        f'{{"Image": {image}, "labels": {labels}, "HostConfig": {host}}}',
        f'{{"Image": {image}, "Labels": {labels}, "hostconfig": {host}}}',
        f'{{"Image": {image}, "Labels": {labels}, "HostConfig": {host.lower()}}}',
        f'{{"Image": {image}, "Labels": {labels}, "HostConfig": {{}}, "HostConfig": {host}}}',
        f'{{"Image": {image}, "Labels": {labels}, "HostConfig": {host}, "hostConfig": {host}}}',
        f'{{"Image": {image}, "Labels": {labels}, "Host\\u0043onfig": {host}}}',
        f'{{"Image": {image}, "Labels": {labels}, "HostConfig": {host}, "CpuShares": 7}}',
        f' \n{{"Image": {image}, "Labels": {labels}, "HostConfig": null}}\n\n',
        f'{{"Image": {image}, "Labels": {labels}, "HostConfig": {host}}} trailing',
        f'{{"Image": {image}, "Labels": {labels}, "HostConfig": {host}, "Env": ["A=\udcff"]}}',
    )
    for body in bodies:
        async with raw_connection(with_policy.socket) as connection:
            await connection.send(request(CREATE_LINE, body.encode(errors="surrogateescape")))
            assert (await connection.response()).status in (201, 400), body
        assert set(await with_policy.shares()) == {SHARES}, body
    assert len(await with_policy.shares()) >= 7


async def test_a_body_that_repeats_a_member_is_refused(with_policy: PolicyBed) -> None:
    labels, image = json.dumps(with_policy.labels), json.dumps(with_policy.image)
    bodies = (
        f'{{"Image": {image}, "Labels": {labels}, "HostConfig": {{"Memory": 67108864}}, "HostConfig": {{}}}}',
        f'{{"Image": {image}, "Labels": {labels}, "HostConfig": {{"Memory": 67108864}}, "hostconfig": {{}}}}',
        f'{{"Image": {image}, "Labels": {labels}, "HostConfig": {{"Memory": 67108864, "memory": null}}}}',
    )
    for body in bodies:
        async with raw_connection(with_policy.socket) as connection:
            await connection.send(request(CREATE_LINE, body.encode()))
            response = await connection.response()
            assert (response.status, "more than once" in response.message) == (400, True), body
    assert await with_policy.shares() == []


async def test_containers_that_remove_themselves_leave_no_records_of_their_pod(with_policy: PolicyBed) -> None:
    bed = with_policy.proxied
    labels = [f"--label={name}={value}" for name, value in with_policy.labels.items()]
    for number in range(2):
        assert await bed.cli("run", "--rm", *labels, bed.image, "-c", f"echo {number}") == str(number)
    await bed.cli("rm", "sandbox")
    for kind in ("container", "sandbox"):
        await bed.proxy.wait_for_metric(f'governor_proxy_records{{kind="{kind}"}}', 0)
