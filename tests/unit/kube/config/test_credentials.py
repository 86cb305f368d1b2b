"""Credentials that change: files that are rotated, plug-ins whose answers expire, both when the server refuses them."""

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
    """As kubelets do it: another file takes the name."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


class TestTexts:
    def test_they_are_held_at_once_and_for_ever(self) -> None:
        credentials = Credentials(Access(SERVER, b"CA", token=Secret("t")), VirtualClock())
        held = credentials.cached()
        assert held is not None
        assert (held.ca, held.token) == (b"CA", Secret("t"))

    async def test_when_refused_there_is_no_other(self) -> None:
        credentials = Credentials(Access(SERVER, token=Secret("t")), VirtualClock())
        held = credentials.cached()
        assert await credentials.get(rejected=held) is held


class TestFiles:
    @pytest.fixture
    def token(self, tmp_path: Path) -> Path:
        file = tmp_path / "token"
        file.write_text("first\n")
        return file

    async def test_a_token_is_read_without_its_line_end(self, token: Path) -> None:
        credentials = Credentials(Access(SERVER, token=token), VirtualClock())
        assert credentials.cached() is None
        assert (await credentials.get()).token == Secret("first")

    async def test_a_rotated_token_is_taken_up_in_time(self, token: Path) -> None:
        clock = VirtualClock()
        credentials = Credentials(Access(SERVER, token=token), clock)
        before = await credentials.get()
        rotate(token, "second")
        assert credentials.cached() is before
        await clock.advance(FILE_TTL_S)
        assert credentials.cached() is None
        assert (await credentials.get()).token == Secret("second")

    async def test_a_refused_token_is_read_again_at_once(self, token: Path) -> None:
        credentials = Credentials(Access(SERVER, token=token), VirtualClock())
        refused = await credentials.get()
        rotate(token, "second")
        assert (await credentials.get(refused)).token == Secret("second")

    async def test_a_file_that_did_not_change_gives_the_very_same(self, token: Path) -> None:
        clock = VirtualClock()
        credentials = Credentials(Access(SERVER, token=token), clock)
        before = await credentials.get()
        await clock.advance(FILE_TTL_S)
        assert await credentials.get() is before
        assert await credentials.get(rejected=before) is before

    async def test_a_file_that_is_away_for_a_moment_does_not_end_the_old_credential(self, token: Path) -> None:
        clock = VirtualClock()
        credentials = Credentials(Access(SERVER, token=token), clock)
        before = await credentials.get()
        token.unlink()
        await clock.advance(FILE_TTL_S)
        assert await credentials.get() is before
        rotate(token, "second")
        await clock.advance(MIN_RENEWAL_S)
        assert (await credentials.get()).token == Secret("second")

    async def test_a_file_that_is_away_when_the_server_refuses_is_an_error(self, token: Path) -> None:
        credentials = Credentials(Access(SERVER, token=token), VirtualClock())
        refused = await credentials.get()
        token.unlink()
        with pytest.raises(GovernorError, match=str(token)):
            await credentials.get(refused)

    async def test_an_empty_file_is_an_error(self, token: Path) -> None:
        token.write_text("\n")
        with pytest.raises(GovernorError, match="is empty"):
            await Credentials(Access(SERVER, token=token), VirtualClock()).get()

    async def test_a_pair_and_an_authority_are_read_too(self, tmp_path: Path) -> None:
        for name in ("ca", "crt", "key"):
            (tmp_path / name).write_text(name.upper())
        pair = ClientCertificate(tmp_path / "crt", tmp_path / "key")
        credential = await Credentials(Access(SERVER, tmp_path / "ca", pair), VirtualClock()).get()
        assert (credential.ca, credential.certificate, credential.key) == (b"CA", b"CRT", Secret("KEY"))


class TestInAPod:
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

    def test_outside_it_is_an_error_that_says_so(self, account: Path) -> None:
        with pytest.raises(GovernorError, match="use a kubeconfig") as caught:
            in_cluster({}, account)
        assert caught.value.kind is Kind.PRECONDITION

    def test_a_pod_without_an_account_is_an_error(self, tmp_path: Path) -> None:
        environ = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
        with pytest.raises(GovernorError, match="token"):
            in_cluster(environ, tmp_path)


class Plugin:
    """A credential plug-in that writes a file's content, and counts how often it ran."""

    def __init__(self, directory: Path) -> None:
        self._answer = directory / "answer"
        self._runs = directory / "runs"
        self._info = directory / "info"
        self._script = directory / "login"
        self.says(f"echo run >>{self._runs}; printenv KUBERNETES_EXEC_INFO >{self._info}; cat {self._answer}")

    @property
    def runs(self) -> int:
        return len(self._runs.read_text().splitlines()) if self._runs.exists() else 0

    @property
    def info(self) -> Any:
        return json.loads(self._info.read_text())

    def says(self, command: str) -> None:
        self._script.write_text(f"#!/bin/sh\n{command}\n")
        self._script.chmod(0o700)

    def gives(self, **status: str) -> None:
        self._answer.write_text(json.dumps({"apiVersion": VERSION, "kind": "ExecCredential", "status": status}))

    def access(self, **changed: Any) -> Access:
        return Access(SERVER, b"CA", plugin=ExecPlugin(str(self._script), VERSION, **changed), namespace="n")


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    plugin = Plugin(tmp_path)
    plugin.gives(token="given")
    return plugin


class TestPlugins:
    async def test_a_token_is_given_once_and_used_on(self, plugin: Plugin) -> None:
        clock = VirtualClock()
        credentials = Credentials(plugin.access(), clock)
        given = await credentials.get()
        await clock.advance(1_000_000)
        assert credentials.cached() is given
        assert (given.token, given.ca, plugin.runs) == (Secret("given"), b"CA", 1)

    async def test_many_who_wait_share_one_run(self, plugin: Plugin) -> None:
        credentials = Credentials(plugin.access(), VirtualClock())
        given = await asyncio.gather(*(credentials.get() for _ in range(20)))
        assert {id(each) for each in given} == {id(given[0])}
        assert plugin.runs == 1

    async def test_it_is_asked_again_before_the_answer_expires(self, plugin: Plugin) -> None:
        clock = VirtualClock()
        plugin.gives(token="given", expirationTimestamp="2026-01-01T01:00:00Z")
        credentials = Credentials(plugin.access(), clock)
        given = await credentials.get()
        await clock.advance(3539)
        assert credentials.cached() is given
        await clock.advance(1)
        assert credentials.cached() is None

    async def test_one_that_gives_what_is_over_already_is_not_asked_without_pause(self, plugin: Plugin) -> None:
        clock = VirtualClock()
        plugin.gives(token="given", expirationTimestamp="2025-01-01T00:00:00Z")
        credentials = Credentials(plugin.access(), clock)
        given = await credentials.get()
        assert credentials.cached() is given
        await clock.advance(MIN_RENEWAL_S)
        assert credentials.cached() is None

    async def test_it_is_asked_again_when_the_server_refuses_but_not_without_pause(self, plugin: Plugin) -> None:
        clock = VirtualClock()
        credentials = Credentials(plugin.access(), clock)
        refused = await credentials.get()
        plugin.gives(token="other")
        assert await credentials.get(refused) is refused
        await clock.advance(MIN_RENEWAL_S)
        assert (await credentials.get(refused)).token == Secret("other")
        assert plugin.runs == 2

    async def test_a_client_certificate_is_given(self, plugin: Plugin) -> None:
        plugin.gives(clientCertificateData="CERT", clientKeyData="KEY")
        given = await Credentials(plugin.access(), VirtualClock()).get()
        assert (given.certificate, given.key, given.token) == (b"CERT", Secret("KEY"), None)

    async def test_a_long_answer_in_one_line_is_read_whole(self, plugin: Plugin) -> None:
        plugin.gives(token="x" * 100_000)
        given = await Credentials(plugin.access(), VirtualClock()).get()
        assert given.token == Secret("x" * 100_000)

    async def test_it_is_told_nothing_of_the_cluster_unless_it_asks(self, plugin: Plugin) -> None:
        await Credentials(plugin.access(), VirtualClock()).get()
        assert plugin.info == {"apiVersion": VERSION, "kind": "ExecCredential", "spec": {"interactive": False}}

    async def test_it_is_told_of_the_cluster_if_it_asks(self, plugin: Plugin) -> None:
        access = plugin.access(cluster_info=True, cluster_config={"audience": "x"})
        await Credentials(access, VirtualClock()).get()
        cluster = {"server": SERVER, "certificate-authority-data": "Q0E=", "config": {"audience": "x"}}
        assert plugin.info["spec"]["cluster"] == cluster

    async def test_it_gets_its_arguments_and_environment_as_they_are(self, plugin: Plugin, tmp_path: Path) -> None:
        seen = tmp_path / "seen"
        answer = {"apiVersion": VERSION, "kind": "ExecCredential", "status": {"token": "t"}}
        plugin.says(f'printf "%s|" "$@" "$GREETING" >{seen}; echo {shlex.quote(json.dumps(answer))}')
        access = plugin.access(args=("a b", "$HOME", ">x"), env=(("GREETING", "hi; there"),))
        await Credentials(access, VirtualClock()).get()
        assert seen.read_text() == "a b|$HOME|>x|hi; there|"

    async def test_what_it_says_to_people_is_not_taken_for_its_answer(self, plugin: Plugin, tmp_path: Path) -> None:
        plugin.says(f"echo 'opening the browser' >&2; cat {tmp_path}/answer")
        assert (await Credentials(plugin.access(), VirtualClock()).get()).token == Secret("given")

    async def test_one_that_fails_is_an_error_with_its_words(self, plugin: Plugin) -> None:
        plugin.says("echo 'session is over: log in again' >&2; exit 3")
        with pytest.raises(GovernorError, match=r"(?s)exited with code 3.*log in again") as caught:
            await Credentials(plugin.access(), VirtualClock()).get()
        assert caught.value.kind is Kind.UNAUTHENTICATED

    async def test_one_that_is_not_installed_is_an_error_with_the_hint(self) -> None:
        plugin = ExecPlugin("no-such-plug-in", VERSION, install_hint="get it from the shop\n")
        with pytest.raises(GovernorError, match=r"no-such-plug-in.*get it from the shop") as caught:
            await Credentials(Access(SERVER, plugin=plugin), VirtualClock()).get()
        assert caught.value.kind is Kind.PRECONDITION

    async def test_one_that_never_ends_is_stopped(self, plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(exec_plugin, "TIMEOUT_S", 0.05)
        plugin.says("exec sleep 1000")
        with pytest.raises(GovernorError, match="did not exit") as caught:
            await Credentials(plugin.access(), VirtualClock()).get()
        assert caught.value.kind is Kind.DEADLINE

    async def test_a_run_that_nobody_waits_for_any_more_is_stopped(self, plugin: Plugin, tmp_path: Path) -> None:
        started = tmp_path / "pid"
        plugin.says(f"echo $$ >{started}.new; mv {started}.new {started}; exec sleep 1000")
        waiting = asyncio.create_task(Credentials(plugin.access(), VirtualClock()).get())
        await until(lambda: asyncio.to_thread(started.exists))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not Path(f"/proc/{started.read_text().strip()}").exists()


@pytest.mark.parametrize(
    "answer",
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
    ],
)
def test_an_answer_that_is_none_is_an_error_that_does_not_show_it(answer: object) -> None:
    with pytest.raises(GovernorError) as caught:
        exec_plugin.parse_output(ExecPlugin("login", VERSION), b"", json.dumps(answer).encode())
    assert "plugin login" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "4711" not in str(caught.value)
