"""Sources of the server's certificate and sealing key: its own CA, configured files, a configured key."""

import asyncio
import secrets
import ssl
import stat
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from cryptography import x509

from demo.programs import GovernorServer
from governor.client import Client
from governor.errors import GovernorError, Kind
from governor.process.address import Address
from governor.process.clock import VirtualClock
from governor.process.exit_codes import EXIT_CODE, SUCCESS
from governor.process.tls import client_context, fingerprint_of
from governor.server.identity.authority import VALID_FOR, open_authority, read_authority
from governor.server.identity.certificates import RELOAD_EVERY_S, RENEW_EVERY_S, Certificate, open_certificate
from governor.server.settings import Settings
from governor.values.secret import Secret
from governor.wire.credentials import read_join_token
from governor.wire.rest import ChangeRequest, TokenRequest
from testbed.kube.pki import Authority
from testbed.pytest_plugin import StartServer
from testbed.waiting import until
from tests.integration.cli.bed import CommandLine
from tests.integration.server.bed import component, profile, running, runtime

NAMES = ("localhost", "127.0.0.1")


class OwnTlsServer(GovernorServer):
    """``governor server`` with its own CA, configured by file and environment as in a pod."""

    @property
    def url(self) -> str:
        """Return the URL of the API."""
        return super().url.replace("http:", "https:")

    def environment(self) -> dict[str, str]:
        """Return the environment of the server and of commands run beside it."""
        file = self.directory / "server.yaml"
        file.write_text(f"data-dir: {self.data_dir}\ntls-names: [localhost, 127.0.0.1]\n")
        return {**super().environment(), "GOVERNOR_SERVER_CONFIG": str(file)}


@asynccontextmanager
async def serving(certificate: Certificate) -> AsyncIterator[Address]:
    """Serve the certificate and run its renewal."""

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    renewal = asyncio.create_task(certificate.run())
    async with await asyncio.start_server(close, "127.0.0.1", 0, ssl=certificate.context) as server:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
    renewal.cancel()
    await asyncio.wait({renewal})


async def served_certificate(address: Address, trust: ssl.SSLContext) -> x509.Certificate:
    """Return the verified certificate of a new connection."""
    _, writer = await asyncio.open_connection(address.host, address.port, ssl=trust)
    try:
        return x509.load_der_x509_certificate(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
    finally:
        writer.close()


def trust_of(directory: Path) -> ssl.SSLContext:
    file = directory / "ca.crt"
    file.write_bytes(read_authority(directory / "authority.pem").pem())
    return client_context(file)


async def test_a_server_creates_its_own_ca_for_users_to_copy_and_agents_to_pin(
    tmp_path: Path, start_server: StartServer
) -> None:
    server = await start_server(OwnTlsServer(tmp_path / "server"))
    governor = CommandLine(server, tmp_path)
    environment = {"GOVERNOR_SERVER_CONFIG": server.environment()["GOVERNOR_SERVER_CONFIG"]}
    token, ca = (
        await governor.run("server", "admin-token", **environment),
        await governor.run("server", "authority", **environment),
    )
    assert (token.code, ca.code) == (SUCCESS, SUCCESS), token.err + ca.err
    (tmp_path / "ca.crt").write_text(ca.out)

    governor.write("r1.yaml", runtime("r1"))
    applied = await governor.run("apply", "-f", "r1.yaml", "--ca-file", "ca.crt")
    untrusted = await governor.run("get", "runtimes")
    join = await governor.run("token", "join", "r1", "--ca-file", "ca.crt")

    assert token.out == server.admin_token_file.read_text()
    assert "PRIVATE" not in ca.out
    assert (applied.code, untrusted.code) == (SUCCESS, EXIT_CODE[Kind.UNAUTHENTICATED]), applied.err + untrusted.err
    assert read_join_token(Secret(join.out.strip())).ca == fingerprint_of(tmp_path / "ca.crt")
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in server.data_dir.glob("*.pem")}
    assert modes == {"authority.pem": 0o600, "certificate.pem": 0o600}


async def test_the_ca_survives_a_restart_and_the_certificate_gets_new_names(tmp_path: Path) -> None:
    async with running(tmp_path, tls_names=NAMES) as bed:
        pin = bed.services.site.ca
        first = await served_certificate(bed.address, trust_of(tmp_path))
    async with running(tmp_path, tls_names=(*NAMES, "governor.example", "*.example", "::1")) as bed:
        second = await served_certificate(bed.address, trust_of(tmp_path))
        assert bed.services.site.ca == pin

    names = second.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "governor.example", "*.example"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    assert first.issuer == second.issuer


async def test_an_issued_certificate_is_renewed_at_run_time(tmp_path: Path) -> None:
    clock = VirtualClock(now=datetime.now(UTC) - timedelta(seconds=RENEW_EVERY_S))
    certificate = open_certificate(Settings(tls_names=NAMES), tmp_path, clock)
    assert certificate is not None
    async with serving(certificate) as address:
        first = await served_certificate(address, trust_of(tmp_path))
        await run_renewal(clock, RENEW_EVERY_S)
        second = await served_certificate(address, trust_of(tmp_path))
    assert second.not_valid_after_utc - first.not_valid_after_utc == timedelta(seconds=RENEW_EVERY_S)
    assert timedelta(seconds=2 * RENEW_EVERY_S) < VALID_FOR


@pytest.mark.parametrize(
    ("age", "event"),
    [
        (timedelta(0), None),
        (VALID_FOR - timedelta(days=2), "certificate expires soon: replace its file"),
        (VALID_FOR + timedelta(days=1), "certificate has expired, clients reject it: replace its file"),
    ],
    ids=["new", "old", "expired"],
)
async def test_a_certificate_that_expires_is_announced_once_a_day(
    tmp_path: Path, age: timedelta, event: str | None
) -> None:
    now = datetime.now(UTC)
    file = tmp_path / "server.pem"
    file.write_bytes(open_authority(tmp_path / "authority.pem", now - age).issue(NAMES, now - age))
    clock = VirtualClock(now=now)
    with structlog.testing.capture_logs() as logs:
        certificate = open_certificate(Settings(tls_certificate=file, tls_key=file), tmp_path, clock)
        assert certificate is not None
        async with serving(certificate):
            for _ in range(3):
                await run_renewal(clock, RELOAD_EVERY_S)
            first = [entry["event"] for entry in logs]
            await run_renewal(clock, 86_400)
    assert first == [event] * (event is not None)
    assert [entry["event"] for entry in logs] == first * 2


async def run_renewal(clock: VirtualClock, after_s: float) -> None:
    """Let the renewal run once and sleep again."""
    await clock.advance(after_s)

    async def is_sleeping() -> bool:
        return clock.sleepers == 1

    await until(is_sleeping)


async def test_replaced_files_are_reloaded_only_if_key_and_certificate_match(tmp_path: Path) -> None:
    authority = Authority()
    files = authority.issue_serving().put(tmp_path, "tls")
    clock = VirtualClock()
    certificate = open_certificate(Settings(tls_certificate=files[0], tls_key=files[1]), tmp_path, clock)
    assert certificate is not None
    trust = authority.client_context()
    async with serving(certificate) as address:
        first = await served_certificate(address, trust)
        replaced = authority.issue_serving()
        files[0].write_bytes(replaced.certificate)
        await run_renewal(clock, RELOAD_EVERY_S)
        assert await served_certificate(address, trust) == first
        files[1].write_bytes(replaced.key)
        await run_renewal(clock, RELOAD_EVERY_S)
        assert await served_certificate(address, trust) == x509.load_pem_x509_certificate(replaced.certificate)


async def test_a_join_token_pins_the_ca_only_if_it_is_in_the_chain(tmp_path: Path) -> None:
    authority = Authority()
    leaf = authority.issue_serving()
    certificate, key = leaf.put(tmp_path, "tls")
    files = {"tls_certificate": certificate, "tls_key": key}
    assert await pin_in_join_token(tmp_path / "leaf only", authority, **files) == ""
    certificate.write_bytes(leaf.certificate + authority.certificate)
    assert await pin_in_join_token(tmp_path / "with ca", authority, **files) == fingerprint_of(certificate)
    assert await pin_in_join_token(tmp_path / "not pinned", authority, **files, pin_authority=False) == ""


async def pin_in_join_token(directory: Path, authority: Authority, **settings: Any) -> str:
    async with running(directory, **settings) as bed:
        (directory / "ca.crt").write_bytes(authority.certificate)
        token, url = bed.admin_token, bed.url.replace("http:", "https:")
        async with Client(url, lambda: token, ca_file=directory / "ca.crt") as admin:
            await admin.change(ChangeRequest(documents=(runtime("r1"),)))
            created = await admin.create_token(TokenRequest(runtime="r1"))
    return read_join_token(Secret(created.text)).ca


async def test_values_are_sealed_with_the_configured_key(tmp_path: Path) -> None:
    key, other = Secret(secrets.token_hex(32)), Secret(secrets.token_hex(32))
    sealed = profile("p", component("store", redisPassword="sesame"))
    async with running(tmp_path, sealing_key=key) as bed:
        await bed.apply(runtime("r1"), sealed)
    async with running(tmp_path, sealing_key=key) as bed:
        agent = await bed.enrol("r1")
        assert "sesame" in str(await agent.newest())

    assert not (tmp_path / "sealing.key").exists()
    assert await start_error_code(tmp_path, sealing_key=other) == "key-exchanged"
    assert await start_error_code(tmp_path, sealing_key=Secret("sesame")) == "key-unreadable"
    assert await start_error_code(tmp_path) == "key-unreadable", (
        "no key may be generated in place of the configured one"
    )


async def start_error_code(directory: Path, **settings: Any) -> str:
    with pytest.raises(GovernorError) as caught:
        async with running(directory, **settings):
            pass
    assert "sesame" not in str(caught.value)
    return caught.value.code


def test_an_unusable_ca_file_is_named_in_the_error(tmp_path: Path) -> None:
    file = tmp_path / "authority.pem"
    clock = VirtualClock()
    created = open_authority(file, clock.now())
    file.write_bytes(created.pem())
    assert read_error_code(file) == "authority-unusable"
    file.write_bytes(Authority().issue("x").key + created.pem())
    assert read_error_code(file) == "authority-unusable"
    file.chmod(0o640)
    assert read_error_code(file) == "key-exposed"


def read_error_code(file: Path) -> str:
    with pytest.raises(GovernorError, match=str(file)) as caught:
        read_authority(file)
    return caught.value.code


@pytest.mark.parametrize("name", ["", "a b", "-a", "a..b", "https://a", "a:1", "ü"])
def test_an_invalid_tls_name_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(GovernorError, match="tls-names"):
        open_certificate(Settings(tls_names=(name,)), tmp_path, VirtualClock())


def test_a_configured_certificate_and_tls_names_are_mutually_exclusive() -> None:
    with pytest.raises(GovernorError, match="not both"):
        Settings(tls_certificate=Path("a"), tls_key=Path("b"), tls_names=("c",))


async def test_printing_a_missing_file_of_the_data_directory_fails(tmp_path: Path) -> None:
    server = GovernorServer(tmp_path)
    server.ports = {"api": 1, "health": 1}
    governor = CommandLine(server, tmp_path)
    for command in ("authority", "admin-token"):
        outcome = await governor.run("server", f"--data-dir={tmp_path}", command)
        assert (outcome.code > 2, outcome.out) == (True, "")
        assert str(tmp_path) in outcome.err


def test_on_a_full_disk_the_server_starts_with_its_old_certificate(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], check=True)
    try:
        open_certificate(Settings(tls_names=NAMES), tmp_path, VirtualClock())
        before = (tmp_path / "certificate.pem").read_bytes()
        with (tmp_path / "filler").open("wb") as filler, pytest.raises(OSError, match="No space"):
            filler.write(bytes(1 << 20))
        assert open_certificate(Settings(tls_names=NAMES), tmp_path, VirtualClock()) is not None
        assert (tmp_path / "certificate.pem").read_bytes() == before
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
