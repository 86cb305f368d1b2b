"""Credential renewal: rotated files, expiring plugin credentials, and credentials that the server rejects."""

import asyncio
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from governor.errors import GovernorError, Kind
from governor.kube.config import exec_plugin
from governor.kube.config.access import Access, ClientCertificate, ExecPlugin, in_cluster
from governor.kube.config.credentials import FILE_TTL_S, MIN_RENEWAL_S, Credentials
from governor.process.clock import VirtualClock
from governor.values.secret import Secret
from testbed.waiting import until

SERVER = "https://api.example"
VERSION = "client.authentication.k8s.io/v1"


def rotate(file: Path, text: str) -> None:
    """Replace a file atomically, as kubelets do."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


class TestInlineValues:
    def test_they_are_cached_immediately(self) -> None:
        credentials = Credentials(Access(SERVER, b"CA", token=Secret("t")), VirtualClock())
        cached = credentials.cached()
        assert cached is not None
        assert (cached.ca, cached.token) == (b"CA", Secret("t"))

    async def test_a_rejected_one_cannot_be_renewed(self) -> None:
        credentials = Credentials(Access(SERVER, token=Secret("t")), VirtualClock())
        cached = credentials.cached()
        assert await credentials.get(rejected=cached) is cached


class TestFiles:
    @pytest.fixture
    def token(self, tmp_path: Path) -> Path:
        file = tmp_path / "token"
        file.write_text("first\n")
        return file

    async def test_a_token_is_read_without_its_newline(self, token: Path) -> None:
        credentials = Credentials(Access(SERVER, token=token), VirtualClock())
        assert credentials.cached() is None
        assert (await credentials.get()).token == Secret("first")

    async def test_a_rotated_token_is_read_after_the_ttl(self, token: Path) -> None:
        clock = VirtualClock()
        credentials = Credentials(Access(SERVER, token=token), clock)
        before = await credentials.get()
        rotate(token, "second")
        assert credentials.cached() is before
        await clock.advance(FILE_TTL_S)
        assert credentials.cached() is None
        assert (await credentials.get()).token == Secret("second")

    async def test_a_rejected_token_is_read_again_immediately(self, token: Path) -> None:
        credentials = Credentials(Access(SERVER, token=token), VirtualClock())
        rejected = await credentials.get()
        rotate(token, "second")
        assert (await credentials.get(rejected)).token == Secret("second")

    async def test_an_unchanged_file_gives_the_same_credential(self, token: Path) -> None:
        clock = VirtualClock()
        credentials = Credentials(Access(SERVER, token=token), clock)
        before = await credentials.get()
        await clock.advance(FILE_TTL_S)
        assert await credentials.get() is before
        assert await credentials.get(rejected=before) is before

    async def test_the_old_credential_stays_in_use_while_the_file_is_missing(self, token: Path) -> None:
        clock = VirtualClock()
        credentials = Credentials(Access(SERVER, token=token), clock)
        before = await credentials.get()
        token.unlink()
        await clock.advance(FILE_TTL_S)
        assert await credentials.get() is before
        rotate(token, "second")
        await clock.advance(MIN_RENEWAL_S)
        assert (await credentials.get()).token == Secret("second")

    async def test_a_missing_file_is_an_error_if_the_server_rejects_the_credential(self, token: Path) -> None:
        credentials = Credentials(Access(SERVER, token=token), VirtualClock())
        rejected = await credentials.get()
        token.unlink()
        with pytest.raises(GovernorError, match=str(token)):
            await credentials.get(rejected)

    async def test_an_empty_file_is_an_error(self, token: Path) -> None:
        token.write_text("\n")
        with pytest.raises(GovernorError, match="is empty"):
            await Credentials(Access(SERVER, token=token), VirtualClock()).get()

    async def test_a_client_certificate_and_an_authority_are_read_too(self, tmp_path: Path) -> None:
        for name in ("ca", "crt", "key"):
            (tmp_path / name).write_text(name.upper())
        pair = ClientCertificate(tmp_path / "crt", tmp_path / "key")
        credential = await Credentials(Access(SERVER, tmp_path / "ca", pair), VirtualClock()).get()
        assert (credential.ca, credential.certificate, credential.key) == (b"CA", b"CRT", Secret("KEY"))


class TestInCluster:
    @pytest.fixture
    def account(self, tmp_path: Path) -> Path:
        for name, text in {"token": "t", "ca.crt": "CA", "namespace": "team\n"}.items():
            (tmp_path / name).write_text(text)
        return tmp_path

    @pytest.mark.parametrize(
        ("host", "server"), [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
    )
    def test_the_service_account_is_used(self, account: Path, host: str, server: str) -> None:
        access = in_cluster({"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}, account)
        assert access == Access(server, account / "ca.crt", token=account / "token", namespace="team")

    def test_outside_a_pod_it_is_an_error(self, account: Path) -> None:
        with pytest.raises(GovernorError, match="use a kubeconfig") as caught:
            in_cluster({}, account)
        assert caught.value.kind is Kind.PRECONDITION

    def test_a_pod_without_a_service_account_is_an_error(self, tmp_path: Path) -> None:
        environ = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
        with pytest.raises(GovernorError, match="token"):
            in_cluster(environ, tmp_path)


class Plugin:
    """An exec plugin that prints a file and counts its runs."""

    def __init__(self, directory: Path) -> None:
        self._output = directory / "output"
        self._runs = directory / "runs"
        self._info = directory / "info"
        self._path = directory / "login"
        self.script(f"echo run >>{self._runs}; printenv KUBERNETES_EXEC_INFO >{self._info}; cat {self._output}")

    @property
    def runs(self) -> int:
        return len(self._runs.read_text().splitlines()) if self._runs.exists() else 0

    @property
    def info(self) -> Any:
        return json.loads(self._info.read_text())

    def script(self, command: str) -> None:
        self._path.write_text(f"#!/bin/sh\n{command}\n")
        self._path.chmod(0o700)

    def returns(self, **status: str) -> None:
        self._output.write_text(json.dumps({"apiVersion": VERSION, "kind": "ExecCredential", "status": status}))

    def access(self, **changed: Any) -> Access:
        return Access(SERVER, b"CA", plugin=ExecPlugin(str(self._path), VERSION, **changed), namespace="n")


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    plugin = Plugin(tmp_path)
    plugin.returns(token="issued")
    return plugin


class TestPlugins:
    async def test_a_token_without_expiry_is_fetched_once(self, plugin: Plugin) -> None:
        clock = VirtualClock()
        credentials = Credentials(plugin.access(), clock)
        issued = await credentials.get()
        await clock.advance(1_000_000)
        assert credentials.cached() is issued
        assert (issued.token, issued.ca, plugin.runs) == (Secret("issued"), b"CA", 1)

    async def test_concurrent_callers_share_one_run(self, plugin: Plugin) -> None:
        credentials = Credentials(plugin.access(), VirtualClock())
        issued = await asyncio.gather(*(credentials.get() for _ in range(20)))
        assert {id(each) for each in issued} == {id(issued[0])}
        assert plugin.runs == 1

    async def test_the_plugin_runs_again_before_its_credential_expires(self, plugin: Plugin) -> None:
        clock = VirtualClock()
        plugin.returns(token="issued", expirationTimestamp="2026-01-01T01:00:00Z")
        credentials = Credentials(plugin.access(), clock)
        issued = await credentials.get()
        await clock.advance(3539)
        assert credentials.cached() is issued
        await clock.advance(1)
        assert credentials.cached() is None

    async def test_a_plugin_that_returns_expired_credentials_runs_at_most_every_ten_seconds(
        self, plugin: Plugin
    ) -> None:
        clock = VirtualClock()
        plugin.returns(token="issued", expirationTimestamp="2025-01-01T00:00:00Z")
        credentials = Credentials(plugin.access(), clock)
        issued = await credentials.get()
        assert credentials.cached() is issued
        await clock.advance(MIN_RENEWAL_S)
        assert credentials.cached() is None

    async def test_a_rejected_credential_runs_the_plugin_again_after_a_pause(self, plugin: Plugin) -> None:
        clock = VirtualClock()
        credentials = Credentials(plugin.access(), clock)
        rejected = await credentials.get()
        plugin.returns(token="other")
        assert await credentials.get(rejected) is rejected
        await clock.advance(MIN_RENEWAL_S)
        assert (await credentials.get(rejected)).token == Secret("other")
        assert plugin.runs == 2

    async def test_a_client_certificate_is_accepted(self, plugin: Plugin) -> None:
        plugin.returns(clientCertificateData="CERT", clientKeyData="KEY")
        issued = await Credentials(plugin.access(), VirtualClock()).get()
        assert (issued.certificate, issued.key, issued.token) == (b"CERT", Secret("KEY"), None)

    async def test_a_long_output_line_is_read_completely(self, plugin: Plugin) -> None:
        plugin.returns(token="x" * 100_000)
        issued = await Credentials(plugin.access(), VirtualClock()).get()
        assert issued.token == Secret("x" * 100_000)

    async def test_the_plugin_receives_no_cluster_info_by_default(self, plugin: Plugin) -> None:
        await Credentials(plugin.access(), VirtualClock()).get()
        assert plugin.info == {"apiVersion": VERSION, "kind": "ExecCredential", "spec": {"interactive": False}}

    async def test_the_plugin_receives_cluster_info_on_request(self, plugin: Plugin) -> None:
        access = plugin.access(cluster_info=True, cluster_config={"audience": "x"})
        await Credentials(access, VirtualClock()).get()
        cluster = {"server": SERVER, "certificate-authority-data": "Q0E=", "config": {"audience": "x"}}
        assert plugin.info["spec"]["cluster"] == cluster

    async def test_arguments_and_environment_are_passed_verbatim(self, plugin: Plugin, tmp_path: Path) -> None:
        seen = tmp_path / "seen"
        output = {"apiVersion": VERSION, "kind": "ExecCredential", "status": {"token": "t"}}
        plugin.script(f'printf "%s|" "$@" "$GREETING" >{seen}; echo {shlex.quote(json.dumps(output))}')
        access = plugin.access(args=("a b", "$HOME", ">x"), env=(("GREETING", "hi; there"),))
        await Credentials(access, VirtualClock()).get()
        assert seen.read_text() == "a b|$HOME|>x|hi; there|"

    async def test_stderr_is_not_parsed(self, plugin: Plugin, tmp_path: Path) -> None:
        plugin.script(f"echo 'opening the browser' >&2; cat {tmp_path}/output")
        assert (await Credentials(plugin.access(), VirtualClock()).get()).token == Secret("issued")

    async def test_a_failing_plugin_is_an_error_with_its_stderr(self, plugin: Plugin) -> None:
        plugin.script("echo 'session is over: log in again' >&2; exit 3")
        with pytest.raises(GovernorError, match=r"(?s)exited with code 3.*log in again") as caught:
            await Credentials(plugin.access(), VirtualClock()).get()
        assert caught.value.kind is Kind.UNAUTHENTICATED

    async def test_concurrent_callers_share_one_failing_run(self, plugin: Plugin, tmp_path: Path) -> None:
        plugin.script(f"echo run >>{tmp_path}/runs; exit 3")
        credentials = Credentials(plugin.access(), VirtualClock())
        errors = await asyncio.gather(*(credentials.get() for _ in range(10)), return_exceptions=True)
        assert {str(error) for error in errors} == {str(errors[0])}
        assert "exited with code 3" in str(errors[0])
        assert plugin.runs == 1

    async def test_a_failed_plugin_runs_again_after_a_pause(self, plugin: Plugin, tmp_path: Path) -> None:
        clock = VirtualClock()
        plugin.script(f"echo run >>{tmp_path}/runs; exit 3")
        credentials = Credentials(plugin.access(), clock)
        for _ in range(3):
            with pytest.raises(GovernorError, match="exited with code 3"):
                await credentials.get()
        assert plugin.runs == 1
        plugin.script(f"echo run >>{tmp_path}/runs; cat {tmp_path}/output")
        await clock.advance(MIN_RENEWAL_S)
        assert (await credentials.get()).token == Secret("issued")
        assert plugin.runs == 2

    async def test_a_failed_renewal_of_a_rejected_credential_is_shared_too(
        self, plugin: Plugin, tmp_path: Path
    ) -> None:
        clock = VirtualClock()
        credentials = Credentials(plugin.access(), clock)
        rejected = await credentials.get()
        await clock.advance(MIN_RENEWAL_S)
        plugin.script(f"echo run >>{tmp_path}/runs; exit 3")
        errors = await asyncio.gather(*(credentials.get(rejected) for _ in range(10)), return_exceptions=True)
        assert all(isinstance(error, GovernorError) for error in errors)
        assert plugin.runs == 2

    async def test_a_plugin_that_is_not_installed_is_an_error_with_the_install_hint(self) -> None:
        plugin = ExecPlugin("no-such-plugin", VERSION, install_hint="get it from the shop\n")
        with pytest.raises(GovernorError, match=r"no-such-plugin.*get it from the shop") as caught:
            await Credentials(Access(SERVER, plugin=plugin), VirtualClock()).get()
        assert caught.value.kind is Kind.PRECONDITION

    async def test_a_plugin_that_never_exits_is_stopped(self, plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(exec_plugin, "TIMEOUT_S", 0.05)
        plugin.script("exec sleep 1000")
        with pytest.raises(GovernorError, match="did not exit") as caught:
            await Credentials(plugin.access(), VirtualClock()).get()
        assert caught.value.kind is Kind.DEADLINE

    async def test_cancellation_stops_the_plugin(self, plugin: Plugin, tmp_path: Path) -> None:
        started = tmp_path / "pid"
        plugin.script(f"echo $$ >{started}.new; mv {started}.new {started}; exec sleep 1000")
        waiting = asyncio.create_task(Credentials(plugin.access(), VirtualClock()).get())
        await until(lambda: asyncio.to_thread(started.exists))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not Path(f"/proc/{started.read_text().strip()}").exists()


@pytest.mark.parametrize(
    "output",
    [
        {},
        {
            "kind": "ExecCredential",
            "apiVersion": "client.authentication.k8s.io/v1beta1",
            "status": {"token": "hunter2"},
        },
        {"kind": "Pod", "apiVersion": VERSION, "status": {"token": "hunter2"}},
        {"kind": "ExecCredential", "apiVersion": VERSION, "status": {}},
        {"kind": "ExecCredential", "apiVersion": VERSION},
        {"kind": "ExecCredential", "apiVersion": VERSION, "status": {"token": 4711}},
        {"kind": "ExecCredential", "apiVersion": VERSION, "status": {"clientKeyData": "hunter2"}},
        {"kind": "ExecCredential", "apiVersion": VERSION, "status": {"token": "x", "expirationTimestamp": "hunter2"}},
        b'{"kind": "ExecCredential", "status": {"token": "hunter2\xff"}}',
        b'{"hunter2": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    ],
)
def test_a_malformed_output_is_an_error_that_does_not_quote_it(output: object) -> None:
    document = output if isinstance(output, bytes) else json.dumps(output).encode()
    with pytest.raises(GovernorError) as caught:
        exec_plugin.parse_output(ExecPlugin("login", VERSION), b"", document)
    assert "plugin login" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "4711" not in str(caught.value)
