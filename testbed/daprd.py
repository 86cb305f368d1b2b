"""Dapr's sidecar: the machine's own of a pinned version, otherwise built from its Go module; and started alone.

It is built with a choice of the components that need no service but Redis and Kubernetes: that takes minutes, and
none of the modules that a module proxy was seen to refuse.
"""

import asyncio
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from testbed.server import Server
from toolchain import cache
from toolchain.golang import GO, download, environment
from toolchain.recipe import Recipe
from toolchain.steps import Argv, Steps

VERSION = "1.18.3"
# It reloads only what it is asked to, by a feature of its Configuration: without one it cannot reload.
VERSION_1_16 = "1.16.0"
MODULE = "github.com/dapr/dapr"
_COMPONENTS = (
    "bindings_cron",
    "bindings_http",
    "bindings_localstorage",
    "bindings_redis",
    "configuration_redis",
    "middleware_http_ratelimit",
    "middleware_http_routerchecker",
    "nameresolution_kubernetes",
    "nameresolution_mdns",
    "nameresolution_sqlite",
    "pubsub_in-memory",
    "pubsub_redis",
    "secretstores_kubernetes",
    "secretstores_local_env",
    "secretstores_local_file",
    "state_in-memory",
    "state_redis",
)
# The kept components are chosen by name; a narrower tag would silently leave some of them out.
_TAG = "allcomponents"
# The version that this release names could not be fetched.
_REPLACEMENTS = {"1.18.3": {"github.com/dapr/durabletask-go": "v0.12.1"}}
_PROBE_WITHIN_S = 2.0


def recipe(version: str) -> Recipe:
    """Return the recipe of a sidecar of a version."""
    replacements = _REPLACEMENTS.get(version, {})

    def build(result: Path, steps: Steps) -> None:
        go = cache.provide(GO)
        source = result.with_name("source")
        copy_module(steps, go, version, source)
        _keep_components(source / "cmd" / "daprd" / "components")
        for module, other in replacements.items():
            edit: Argv = [go, "mod", "edit", "-replace", f"{module}={module}@{other}"]
            steps.run(f"replace {module}", edit, cwd=source, environment=environment())
        flags = ["-tags", _TAG, "-ldflags", f"-s -w -X {MODULE}/pkg/buildinfo.version={version}"]
        compilation: Argv = [go, "build", *flags, "-o", result / "daprd", "./cmd/daprd"]
        steps.run("compile (some minutes)", compilation, cwd=source, environment=environment())

    return Recipe(
        "daprd",
        version,
        "daprd",
        build,
        inputs=(_TAG, *_COMPONENTS, *(f"{module}@{other}" for module, other in replacements.items())),
        packages=("ca-certificates",),
        find=lambda: _on_machine(version),
    )


def _on_machine(version: str) -> Path | None:
    """Return a sidecar of exactly this version on the PATH or where Dapr's installer puts it."""
    for directory in (None, str(Path.home() / ".dapr" / "bin")):
        found = shutil.which("daprd", path=directory)
        if found and _version_of(found) == version:
            return Path(found)
    return None


def _version_of(binary: str) -> str:
    return subprocess.run([binary, "--version"], capture_output=True, text=True, check=False).stdout.strip()


def copy_module(steps: Steps, go: Path, version: str, source: Path) -> None:
    """Return a writable copy: the module's replace directives prevent building it in place."""
    module = download(steps, go, MODULE, version)
    steps.run("copy the module", ["cp", "-r", "--no-preserve=mode", module, source])


def _keep_components(directory: Path) -> None:
    for name in _COMPONENTS:
        if not (directory / f"{name}.go").exists():
            raise FileNotFoundError(f"this version of daprd has no component {name}")
    for file in directory.glob("*.go"):
        if file.stem not in (*_COMPONENTS, "zz_notag"):
            file.unlink()


DAPRD = recipe(VERSION)
DAPRD_1_16 = recipe(VERSION_1_16)


@dataclass(frozen=True)
class Sidecar:
    """The settings of one sidecar."""

    app_id: str
    resources: Path
    app_port: int | None = None
    namespace: str = "default"
    arguments: tuple[str, ...] = ()


class Daprd(Server):
    """A standalone sidecar on loopback, without control plane and mutual TLS."""

    def __init__(self, binary: Path, directory: Path, sidecar: Sidecar) -> None:
        super().__init__("daprd", directory, ["http", "grpc", "internal-grpc", "public", "metrics"])
        self._binary = binary
        self._sidecar = sidecar

    @property
    def url(self) -> str:
        """The URL of the HTTP API."""
        return f"http://127.0.0.1:{self.ports['http']}"

    @property
    def metrics_url(self) -> str:
        """The URL of the metrics."""
        return f"http://127.0.0.1:{self.ports['metrics']}/metrics"

    def command(self) -> list[str]:
        """Return the command line, with one port for each interface."""
        ports = self.ports
        settings = {
            "mode": "standalone",
            "app-id": self._sidecar.app_id,
            "resources-path": self._sidecar.resources,
            "dapr-http-port": ports["http"],
            "dapr-grpc-port": ports["grpc"],
            "dapr-internal-grpc-port": ports["internal-grpc"],
            "dapr-public-port": ports["public"],
            "metrics-port": ports["metrics"],
            "dapr-listen-addresses": "127.0.0.1",
            "dapr-internal-grpc-listen-address": "127.0.0.1",
            "dapr-public-listen-address": "127.0.0.1",
            "metrics-listen-address": "127.0.0.1",
            "enable-mtls": "false",
        }
        if self._sidecar.app_port is not None:
            settings["app-port"] = self._sidecar.app_port
        return [str(self._binary), *(f"--{name}={value}" for name, value in settings.items()), *self._sidecar.arguments]

    def environment(self) -> dict[str, str]:
        """Add the namespace: without one, resources of the same name in two namespaces conflict."""
        return {**super().environment(), "NAMESPACE": self._sidecar.namespace}

    async def is_ready(self) -> bool:
        """Return whether the components are initialised; the application need not be up.

        A sidecar that is about to exit because of a component may be ready for a moment.
        """
        return await _status(self.ports["http"], "/v1.0/healthz/outbound") == 204


async def _status(port: int, path: str) -> int:
    """Return the status of one GET, or 0 if there is no response."""
    try:
        async with asyncio.timeout(_PROBE_WITHIN_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                return int((await reader.readuntil(b"\r\n")).split()[1])
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return 0
