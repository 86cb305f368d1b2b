"""daprd's command line, environment and log; kernel facts; redaction; settings."""

import json
import os
import socket
from pathlib import Path

import msgspec
import pytest

from governor.agent.platforms.local.sidecars import daprd, procfs
from governor.agent.platforms.local.storage import Ports
from governor.agent.redaction import Redactor
from governor.agent.settings import Settings, SidecarSettings
from governor.errors import GovernorError
from governor.process.child.child import ChildExit
from governor.process.settings import load

LAUNCH = daprd.Launch(Path("/bin/daprd"), Path("/res"), "default", Path("/state"))
PORTS = Ports(1, 2, 3, 4, 5)


def line(level: str, message: str) -> str:
    return json.dumps({"level": level, "msg": message})


def test_the_operators_flags_override_ours_except_the_configuration() -> None:
    argv = daprd.argv(LAUNCH, SidecarSettings(app_id="app", argv=("--config=mine", "--enable-mtls")), PORTS, Path("/c"))
    assert argv.index("--enable-mtls") > argv.index("--enable-mtls=false")
    assert argv[-1] == "--config=/c"
    assert "--resources-path=/res" in argv
    assert not any(word.startswith("--app-port") for word in argv)


def test_daprd_listens_on_loopback_only() -> None:
    argv = daprd.argv(LAUNCH, SidecarSettings(app_id="app"), PORTS, None)
    flags = (
        "--dapr-listen-addresses",
        "--dapr-internal-grpc-listen-address",
        "--dapr-public-listen-address",
        "--metrics-listen-address",
    )
    assert all(f"{flag}=127.0.0.1" in argv for flag in flags)


def test_daprd_gets_a_namespace_and_none_of_the_agents_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOVERNOR_AGENT_JOIN_TOKEN", "secret")
    monkeypatch.setenv("DAPR_API_TOKEN", "theirs")
    environment = daprd.environment(msgspec.structs.replace(LAUNCH, namespace="blue"))
    assert environment["NAMESPACE"] == "blue"
    assert environment["DAPR_API_TOKEN"] == "theirs"
    assert "GOVERNOR_AGENT_JOIN_TOKEN" not in environment


def test_a_throw_away_daprd_collects_garbage_only_at_a_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOMEMLIMIT", raising=False)
    monkeypatch.setenv("GOGC", "50")
    environment = daprd.throw_away_environment(LAUNCH)
    assert (environment["GOGC"], environment["GOMEMLIMIT"]) == ("off", "256MiB")
    assert environment[daprd.OWNER_VARIABLE] == "/state"
    monkeypatch.setenv("GOMEMLIMIT", "100MiB")
    assert daprd.throw_away_environment(LAUNCH)["GOMEMLIMIT"] == "100MiB"


def test_the_last_error_is_found_or_else_the_last_lines() -> None:
    tail = [line("info", "a"), line("error", "b"), line("fatal", "c"), line("info", "d")]
    assert daprd.last_error(tail) == "c"
    assert daprd.last_error([line("info", "a"), "panic: no"]) == "a; panic: no"


def test_errors_are_read_from_the_log_offset_of_the_process(tmp_path: Path) -> None:
    log = tmp_path / "log"
    old = line("error", "old") + "\n"
    log.write_text(old + line("error", "new") + "\n" + line("info", "fine") + "\n")
    assert daprd.errors(log, len(old)) == ("new",)


def test_a_missing_daprd_is_an_error_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(GovernorError, match="--daprd"):
        daprd.find_program(None)


def test_the_listening_socket_of_a_process_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        before = procfs.listening_socket(os.getpid(), port)
        assert before == os.fstat(first.fileno()).st_ino
        assert before in procfs.open_sockets(os.getpid())
        assert procfs.listening_pid(port) == os.getpid()
    assert before not in procfs.open_sockets(os.getpid())
    assert procfs.listening_socket(os.getpid(), port) == 0
    with socket.create_server(("127.0.0.1", port)):
        assert procfs.listening_socket(os.getpid(), port) not in (0, before)


def test_a_socket_that_is_connected_from_the_port_does_not_listen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert procfs.listening_socket(os.getpid(), client.getsockname()[1]) == 0


def test_the_listening_socket_is_found_without_reading_every_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "_TABLES", ())
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert procfs.listening_socket(os.getpid(), server.getsockname()[1])


def test_without_netlink_the_listening_socket_is_found_in_the_kernels_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "_NETLINK_SOCK_DIAG", 99)
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert procfs.listening_socket(os.getpid(), server.getsockname()[1]) == os.fstat(server.fileno()).st_ino


def test_a_process_without_watch_or_flag_has_neither(tmp_path: Path) -> None:
    assert not procfs.has_watch(os.getpid(), tmp_path)
    assert not procfs.has_flag(os.getpid(), tmp_path, "--resources-path")
    assert not procfs.has_watch(0, tmp_path)


def test_only_sensitive_values_are_redacted() -> None:
    redactor = Redactor()
    metadata = [{"name": "redisPassword", "value": "hush-hush"}, {"name": "redisHost", "value": "host:1"}]
    spec = {"type": "state.redis", "version": "v1", "metadata": metadata}
    manifest = {"apiVersion": "dapr.io/v1alpha1", "kind": "Component", "metadata": {"name": "one"}, "spec": spec}
    redactor.add([manifest])
    assert redactor.redact("cannot reach host:1 with hush-hush") == "cannot reach host:1 with ***"


def test_settings_list_sidecars_with_unique_app_ids(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(
        "state-dir: /s\nsidecars:\n- {app-id: one, app-port: 80}\n- {app-id: two, argv: [--log-level=debug]}\n"
    )
    settings = load(Settings, "agent", config=file, environ={})
    assert [each.app_id for each in settings.sidecars] == ["one", "two"]
    assert settings.resources == Path("/s/resources")
    with pytest.raises(GovernorError, match="'one' occurs twice"):
        Settings(state_dir=Path("/s"), sidecars=(SidecarSettings(app_id="one"), SidecarSettings(app_id="one")))


@pytest.mark.parametrize(
    ("exited", "external_cause"),
    [
        (ChildExit(1, "", (line("fatal", "Fatal error from runtime"),)), False),
        (ChildExit(0, "", (line("info", "shutdown"),)), False),
        (ChildExit(None, "SIGKILL", (line("error", "something before"),)), True),
        (ChildExit(1, "", (line("fatal", "listen tcp 127.0.0.1:1: bind: address already in use"),)), True),
        (ChildExit(None, "", (line("info", "running"),)), True),
        (ChildExit(None, "", (line("fatal", "Fatal error from runtime"),)), False),
    ],
    ids=["fatal", "clean exit", "killed", "port in use", "adopted and killed", "adopted and fatal"],
)
def test_a_killed_daprd_or_one_without_its_port_has_an_external_cause(exited: ChildExit, external_cause: bool) -> None:
    assert daprd.has_external_cause(exited) is external_cause


@pytest.mark.parametrize(
    "wrong", ["{app-id: a, external: true}", "{app-id: a, external: true, http-port: 1, argv: [x]}"]
)
def test_an_external_sidecar_needs_a_port_and_takes_no_argv(tmp_path: Path, wrong: str) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(f"state-dir: {tmp_path}\nsidecars: [{wrong}]\n")
    with pytest.raises(GovernorError, match="external sidecar 'a'"):
        load(Settings, "agent", config=file, environ={})


def test_a_log_that_cannot_be_read_contains_no_errors(tmp_path: Path) -> None:
    assert daprd.errors(tmp_path / "deleted.log", 7) == ()
    assert daprd.warnings(tmp_path, 0) == ()
