"""The modules that each program imports, compared with committed lists: no program loads another's libraries.

``GOVERNOR_WRITE_MODULES=1 pytest tests/integration/test_modules.py`` rewrites the lists after an intended change.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from toolchain import cache
from toolchain.renderer import RENDERER

LISTS = Path(__file__).parent / "modules"

# Every interpreter loads this first, also after execv. The exit hook runs last.
CUSTOMIZE = """
import atexit, os, sys
def write(file):
    with open(file, "w") as out:
        out.write("\\n".join(sys.modules))
atexit.register(write, os.environ["MODULES_FILE"])
"""

RUNNING = {
    "server": b"Started server process",
    "agent": b"cannot reach",
    "reconciler": b"cannot prepare the hub yet",
    "runtime-proxy": b'"serving"',
    "runtime-proxy-docker": b'"serving"',
}
"""What a program logs once it runs; the agent has no server, the reconciler no cluster and the proxy no runtime."""

PROGRAMS = {
    "cli": ["--help"],
    "server": ["server", "--listen=127.0.0.1:0", "--health-listen=127.0.0.1:0", "--data-dir={tmp}/data"],
    "agent": [
        "agent",
        "--state-dir={tmp}/state",
        "--config={tmp}/agent.yaml",
        "--join-token-file={tmp}/join.token",
        "--daprd={daprd}",
    ],
    "reconciler": ["reconciler", "--kubeconfig={tmp}/kubeconfig"],
    "runtime-proxy": [
        "runtime-proxy",
        "--koord-runtimeproxy-endpoint={tmp}/proxy.sock",
        "--remote-runtime-service-endpoint={tmp}/runtime.sock",
        "--hook-server-dir={tmp}/plugins",
    ],
    "runtime-proxy-docker": [
        "runtime-proxy",
        "--backend-runtime-mode=Docker",
        "--koord-runtimeproxy-endpoint={tmp}/proxy.sock",
        "--remote-runtime-service-endpoint={tmp}/docker.sock",
        "--hook-server-dir={tmp}/plugins",
    ],
}


OWN = {
    "cli": "governor.cli",
    "server": "governor.server",
    "agent": "governor.agent",
    "reconciler": "governor.reconciler",
    "runtime-proxy": "governor.runtimeproxy",
    "runtime-proxy-docker": "governor.runtimeproxy",
}
"""The package of each program: its modules are counted by package, so that a new one needs no new line."""


def counted(modules: Sequence[str], own: str) -> set[str]:
    """Return own packages, other modules of ours and top-level packages, without the standard library."""
    ours = {name for name in modules if name.split(".")[0] == "governor"}
    ours -= {
        name for name in ours if name.startswith(own + ".") and not any(other.startswith(name + ".") for other in ours)
    }
    others = {name.split(".")[0] for name in modules} - set(sys.stdlib_module_names) - {"governor", "typing_extensions"}
    return ours | {name for name in others if not name.startswith(("_", "sitecustomize", "editable"))}


def modules_of(program: str, tmp_path: Path, daprd: Path) -> set[str]:
    """Start the program, wait until it runs, stop it, and return what it has imported."""
    arguments = [argument.format(tmp=tmp_path, daprd=daprd) for argument in PROGRAMS[program]]
    dump, log = tmp_path / "modules.txt", tmp_path / "log"
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text(CUSTOMIZE)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "governor.cli.main", *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "PATH": os.pathsep.join([str(cache.provide(RENDERER).parent), os.environ["PATH"]]),
                "PYTHONPATH": str(tmp_path / "path"),
                "MODULES_FILE": str(dump),
            },
        )
    try:
        deadline = time.monotonic() + 60
        while RUNNING.get(program, b"") not in log.read_bytes() and process.poll() is None:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.01)
        if program in RUNNING:
            process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, log.read_text()
    return counted(dump.read_text().splitlines(), OWN[program])


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_imports_exactly_what_its_list_names(program: str, tmp_path: Path, daprd_binary: Path) -> None:
    (tmp_path / "agent.yaml").write_text("sidecars: []\n")
    (tmp_path / "join.token").write_text(_join_token())
    (tmp_path / "kubeconfig").write_text(_kubeconfig())
    found = modules_of(program, tmp_path, daprd_binary)
    listed = LISTS / f"{program}.txt"
    if os.environ.get("GOVERNOR_WRITE_MODULES") == "1":
        listed.write_text("\n".join(sorted(found)) + "\n")

    assert len(found) > 5
    assert sorted(found - set(listed.read_text().split())) == [], "a new import: does this program need it?"
    assert sorted(set(listed.read_text().split()) - found) == [], "no longer imported: shorten the list"


def test_no_program_imports_another() -> None:
    lists = {path.stem: path.read_text().split() for path in LISTS.glob("*.txt")}

    assert [name for name in lists["agent"] if name.startswith("governor.server")] == []
    others = ("governor.agent", "governor.client", "governor.server", "governor.runtimeproxy")
    assert [name for name in lists["reconciler"] if name.startswith(others)] == []
    assert {"sqlalchemy", "starlette", "uvicorn", "rich"} & set(lists["reconciler"]) == set()
    assert [name for name in lists["server"] if name.startswith(("governor.agent", "governor.client"))] == []
    assert {"sqlalchemy", "starlette", "uvicorn", "jsonschema_rs", "governor.kube"} & set(lists["agent"]) == set()
    assert {"aiohttp", "sqlalchemy", "rich"} & set(lists["cli"]) == set()
    assert {"aiohttp", "click", "cryptography", "grpc", "sqlalchemy", "yaml"} & set(lists["runtime-proxy"]) == set()
    assert "governor.runtimeproxy.docker" not in lists["runtime-proxy"]


def _join_token() -> str:
    from governor.wire.credentials import JoinToken

    return JoinToken("http://127.0.0.1:9", "nowhere", "a-secret").encode().reveal()


def _kubeconfig() -> str:
    """Return the kubeconfig of a cluster that does not exist."""
    whole = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {}}],
    }
    return json.dumps(whole)
