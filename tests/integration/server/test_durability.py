"""Durability of acknowledged writes, and data directories with which a server does not start."""

import asyncio
import ipaddress
import sqlite3
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from demo.programs import GovernorServer
from governor.client import Client, WatchSession
from governor.domain.documents import DocumentRef
from governor.domain.reports import State
from governor.domain.roles import Role
from governor.errors import GovernorError, Kind
from governor.process.address import Address
from governor.server.settings import Settings
from governor.values.secret import Secret
from governor.wire import credentials
from governor.wire.deliveries import open_delivery
from governor.wire.rest import ChangeRequest, EnrolRequest, TokenRequest
from testbed.pytest_plugin import StartServer
from testbed.waiting import until
from tests.integration.server.bed import component, profile, report_on, running, runtime

CANARY = "canary-77c1e0a4"


async def test_acknowledged_writes_survive_kill_9_under_concurrent_writes(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = await start_server(GovernorServer(tmp_path))
    key = Ed25519PrivateKey.generate()
    async with server.client() as admin:
        await admin.change(ChangeRequest(documents=(runtime("r1"), profile("p", component("s", redisHost="0")))))
        viewer = await admin.create_token(TokenRequest(role=Role.VIEWER))
        join = credentials.read_join_token(Secret((await admin.create_token(TokenRequest(runtime="r1"))).text))
        enrolment = await admin.enrol(EnrolRequest("r1", join.secret, credentials.encode_public_key(key.public_key())))
        newest = 0
        for number in range(1, 30):
            change = await admin.change(ChangeRequest(documents=(profile("p", component("s", redisHost=str(number))),)))
            newest = change.revision or 0

        async def is_issued() -> bool:
            return (await admin.runtime("r1")).sequence == newest

        await until(is_issued)
    async with Client(server.url, lambda: credentials.mint("r1", key, _now())) as agent:
        signed = await agent.delivery("r1", newest)
        delivery = open_delivery(signed, credentials.read_public_key(enrolment.delivery_key))
        sessions: list[WatchSession] = []
        async with aclosing(agent.watch("r1", on_open=sessions.append)) as watch:
            await anext(watch)
        await agent.report(report_on(delivery, State.VERIFIED, session=sessions[0].number))
    acknowledged = await _kill_during_writes(server)
    await server.start()
    async with server.client() as admin, Client(server.url, lambda: Secret(viewer.text)) as reader:
        stored = {each.name: each.revision for each in await admin.documents("Runtime") if each.name != "r1"}
        numbers = [each.number for each in await reader.revisions(limit=500)]
        document = await reader.document(DocumentRef("Profile", "p"))
        seen = await reader.runtime("r1")
        progress = [each async for each in admin.progress(newest)]
    async with Client(server.url, lambda: credentials.mint("r1", key, _now())) as agent:
        again = await agent.delivery("r1", newest)
    assert {name: stored.get(name) for name in acknowledged} == acknowledged
    assert numbers == list(range(newest + len(stored), 0, -1))
    assert document.version == newest
    assert seen.report is not None
    assert {each.type: each.reason for each in seen.conditions} == {"Verified": "Verified", "Connected": "NotWatching"}
    assert progress[0].complete
    assert again == signed


async def _kill_during_writes(server: GovernorServer) -> dict[str, int]:
    """Kill the server while three clients write; return the acknowledged runtimes with their revisions."""
    acknowledged: dict[str, int] = {}
    enough = asyncio.Event()

    async def write(writer: str) -> None:
        async with server.client() as admin:
            for number in range(1000):
                change = await admin.change(ChangeRequest(documents=(runtime(f"{writer}{number}"),)))
                acknowledged[f"{writer}{number}"] = change.revision or 0
                if len(acknowledged) >= 60:
                    enough.set()

    writers = [asyncio.create_task(write(name)) for name in "abc"]
    async with asyncio.timeout(200):
        await enough.wait()
    await server.kill()
    outcomes = await asyncio.gather(*writers, return_exceptions=True)
    assert all(isinstance(outcome, GovernorError) for outcome in outcomes)
    return acknowledged


def _now() -> datetime:
    return datetime.now(UTC)


async def test_a_server_process_keeps_its_secrets_and_its_data_directory_to_itself(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = await start_server(GovernorServer(tmp_path))
    token = server.admin_token_file.read_text().strip()
    modes = {path.name: path.stat().st_mode & 0o777 for path in server.data_dir.iterdir()}
    assert str(server.admin_token_file) in server.log.read_text()
    assert server.data_dir.stat().st_mode & 0o777 == 0o700
    assert modes.pop("server.url") == 0o644
    assert set(modes.values()) == {0o600}

    secret = profile("p", component("s", redisHost="h", redisPassword=CANARY))
    async with server.client() as admin:
        change = await admin.change(ChangeRequest(documents=(runtime("r1"), secret)))
        shown = await admin.document(DocumentRef("Profile", "p"))
        with pytest.raises(GovernorError) as rejected:
            await admin.change(ChangeRequest(documents=(secret, secret)))
        await admin.change(ChangeRequest(documents=(profile("p", component("s", redisPassword=f"{CANARY}2")),)))
    assert CANARY not in f"{change}{shown}{rejected.value}"
    assert '"value":"***"' in str(shown.document).replace("'", '"').replace(" ", "")

    second = GovernorServer(tmp_path)
    second.log = tmp_path / "second.log"
    second.ports = {"api": 0, "health": 0}
    assert "another server uses the data directory" in await start_failure(second)

    await server.kill()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"governor.db", "governor.db-wal", "governor-server.log"} <= {path.name for path in files}
    assert [path.name for path in files if CANARY.encode() in path.read_bytes()] == []
    assert [path.name for path in files if token.encode() in path.read_bytes()] == ["admin.token"]


async def start_failure(server: GovernorServer) -> str:
    """Start a server that must fail and return its log."""
    process = await server._spawn()
    async with asyncio.timeout(100):
        code = await process.wait()
    assert code not in (0, None)
    return server.log.read_text()


async def test_runtime_status_survives_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), runtime("r2"), profile("p", component("s", redisHost="a")))
        agent = await bed.enrol("r1")
        await agent.report(await agent.newest(), State.FAILED)
    async with running(tmp_path) as bed, bed.client() as admin, aclosing(admin.progress(1)) as progress_events:
        states = {each.name: each.summary.state for each in await admin.runtimes()}
        progress = await anext(progress_events)
    assert states == {"r1": "Failed", "r2": "Pending"}
    assert not progress.complete


async def test_a_masked_value_is_kept_through_read_edit_and_apply(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), profile("p", component("s", redisHost="a", redisPassword=CANARY)))
        async with bed.client() as admin:
            read = (await admin.document(DocumentRef("Profile", "p"))).document
        assert read is not None
        fields = read["spec"]["resources"][0]["spec"]["metadata"]
        assert fields[1] == {"name": "redisPassword", "value": "***"}
        fields[0]["value"] = "b"
        fields.reverse()
        change = await bed.apply(read)
        delivery = await (await bed.enrol("r1")).newest()
    values = {field["name"]: field["value"] for field in delivery.resources[0]["spec"]["metadata"]}
    assert values == {"redisHost": "b", "redisPassword": CANARY}
    assert change.revision == 2


async def start_error(directory: Path) -> GovernorError:
    with pytest.raises(GovernorError) as caught:
        async with running(directory):
            raise AssertionError("the server started")
    return caught.value


async def test_a_missing_exposed_or_different_key_is_rejected(tmp_path: Path) -> None:
    async with running(tmp_path):
        pass
    key = tmp_path / "sealing.key"
    kept = key.read_bytes()
    key.unlink()
    assert (await start_error(tmp_path)).code == "key-unreadable"
    key.write_bytes(b"00" * 32)
    key.chmod(0o644)
    assert (await start_error(tmp_path)).code == "key-exposed"
    key.chmod(0o600)
    assert (await start_error(tmp_path)).code == "key-exchanged"
    key.write_bytes(kept)
    async with running(tmp_path):
        pass


async def test_a_database_of_a_newer_version_is_rejected(tmp_path: Path) -> None:
    async with running(tmp_path):
        pass
    with sqlite3.connect(tmp_path / "governor.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    error = await start_error(tmp_path)
    assert (error.kind, error.code) == (Kind.PRECONDITION, "store-newer")


async def test_a_file_that_is_not_a_database_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "governor.db").write_bytes(b"something else entirely " * 100)
    assert (await start_error(tmp_path)).code == "store-unusable"


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "governor.example"])
def test_listening_beyond_loopback_without_tls_is_rejected(host: str) -> None:
    with pytest.raises(GovernorError, match="needs TLS"):
        Settings(listen=Address(host, 8420))


async def test_the_join_token_contains_the_fingerprint_of_the_certificate(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    async with running(tmp_path / "data", tls_certificate=certificate, tls_key=key) as bed:
        url = bed.url.replace("http:", "https:")
        token = bed.admin_token
        async with Client(url, lambda: token, ca_file=certificate) as admin:
            await admin.change(ChangeRequest(documents=(runtime("r1"),)))
            join = credentials.read_join_token(Secret((await admin.create_token(TokenRequest(runtime="r1"))).text))
        async with Client(join.server, None, ca_fingerprint=join.ca) as agent:
            public = credentials.encode_public_key(Ed25519PrivateKey.generate().public_key())
            enrolment = await agent.enrol(EnrolRequest("r1", join.secret, public))
        async with Client(url, lambda: token) as untrusting:
            with pytest.raises(GovernorError) as caught:
                await untrusting.runtimes()
    assert enrolment.runtime == "r1"
    assert join.server == url
    assert caught.value.code == "tls-untrusted"


def self_signed(directory: Path) -> tuple[Path, Path]:
    """Write a self-signed certificate for 127.0.0.1 and its key; return both files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(_now() - timedelta(hours=1))
        .not_valid_after(_now() + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = directory / "server.crt", directory / "server.pem"
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate_file, key_file
