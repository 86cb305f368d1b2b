"""Settings of the runtime proxy, and which are rejected at start."""

from pathlib import Path
from typing import Any

import pytest

from governor.errors import GovernorError, Kind
from governor.process.settings import load
from governor.runtimeproxy.settings import Settings


def settings(**given: Any) -> Settings:
    flags = {name.replace("_", "-"): str(value) for name, value in given.items()}
    return load(Settings, "runtime-proxy", flags=flags, config=None, environ={})


def test_sockets_are_paths_with_or_without_a_scheme() -> None:
    plain = settings(koord_runtimeproxy_endpoint="/a/p.sock", remote_runtime_service_endpoint="/a/r.sock")
    schemed = settings(
        koord_runtimeproxy_endpoint="unix:///a/p.sock", remote_runtime_service_endpoint="unix:///a/r.sock"
    )

    for each in (plain, schemed):
        assert (each.listen_path, each.runtime_path, each.image_path) == ("/a/p.sock", "/a/r.sock", "")
        assert each.control_path == "/a/p-control.sock"


@pytest.mark.parametrize(
    "name",
    [
        "koord_runtimeproxy_endpoint",
        "remote_runtime_service_endpoint",
        "remote_image_service_endpoint",
        "control_endpoint",
    ],
)
def test_an_endpoint_that_is_not_an_absolute_path_is_rejected_by_name(name: str) -> None:
    for endpoint in ("a.sock", "tcp://1.2.3.4:5"):
        with pytest.raises(GovernorError, match=f"{name.replace('_', '-')}: '{endpoint}' is not the absolute path"):
            settings(**{name: endpoint})


@pytest.fixture
def linked(tmp_path: Path) -> tuple[Path, Path]:
    """Return a directory and a link to it, like /run and /var/run."""
    (tmp_path / "run").mkdir()
    (tmp_path / "var-run").symlink_to("run")
    return tmp_path / "run", tmp_path / "var-run"


def test_listening_on_the_runtimes_socket_is_rejected_even_through_a_link(linked: tuple[Path, Path]) -> None:
    run, var_run = linked
    for served in (run / "r.sock", var_run / "r.sock", run / "." / "r.sock"):
        for name in ("koord_runtimeproxy_endpoint", "control_endpoint"):
            with pytest.raises(GovernorError, match="which is the socket of its runtime or image service"):
                settings(**{name: served}, remote_runtime_service_endpoint=run / "r.sock")


def test_a_link_to_the_runtimes_socket_is_not_a_separate_image_service(linked: tuple[Path, Path]) -> None:
    run, var_run = linked
    found = settings(remote_runtime_service_endpoint=run / "r.sock", remote_image_service_endpoint=var_run / "r.sock")

    assert found.image_path == ""


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "1e999", "soon"])
def test_an_invalid_timeout_is_rejected(seconds: str) -> None:
    with pytest.raises(GovernorError) as raised:
        settings(plugin_timeout=seconds)

    assert raised.value.kind is Kind.INVALID
    assert "plugin-timeout" in str(raised.value.details)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "/var/run/docker.sock"),
        ({"remote_runtime_service_endpoint": "unix:///run/d.sock"}, "/run/d.sock"),
    ],
)
def test_docker_mode_has_dockerds_socket_and_no_image_service(given: dict[str, str], expected: str) -> None:
    found = settings(backend_runtime_mode="Docker", remote_image_service_endpoint="/run/images.sock", **given)

    assert (found.is_docker, found.runtime_path, found.image_path) == (True, expected, "")
