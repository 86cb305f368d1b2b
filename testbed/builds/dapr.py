"""Dapr: the sidecar and the control plane's services, built from its Go module.

The sidecar has only the components that need no service but Redis and Kubernetes: the others take many minutes, and
some of their modules cannot be fetched everywhere. The scheduler service is left out for the latter reason.
"""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from toolchain import cache, golang
from toolchain.golang import COMPILER_FLAGS, GO, Build
from toolchain.recipe import Recipe, not_found
from toolchain.steps import Argv, Steps

VERSION = "1.18.3"
# It reloads a component only if its Configuration enables the feature: without it, a restart is needed.
VERSION_1_16 = "1.16.0"
MODULE = "github.com/dapr/dapr"
SERVICES = ("operator", "sentry", "injector", "placement")
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
# The components are chosen by file; a narrower tag would silently leave some of them out.
_TAG = "allcomponents"
# The version that this release requires cannot be fetched.
_REPLACED = {"github.com/dapr/durabletask-go": "v0.12.1"}
# Modules whose newer versions the older release does not compile with.
_NOT_ALIGNED = ("github.com/dapr/", "github.com/diagridio/", "github.com/redis/go-redis/")


def _prepare(version: str, programs: tuple[str, ...], source: Path, steps: Steps) -> Build:
    """Write the sources of a version and return the build of some of its programs."""
    golang.copy_module(steps, MODULE, version, source)
    _keep_components(source / "cmd" / "daprd" / "components")
    if version == VERSION:
        _edit(source, steps, [f"-replace={module}={module}@{other}" for module, other in _REPLACED.items()])
    else:
        _align(source, golang.download(steps, MODULE, VERSION), steps)
    stamp = (f"{MODULE}/pkg/buildinfo.version", version)
    return Build(source, [f"./cmd/{name}" for name in programs], [stamp], _TAG, is_edited=True)


def _align(source: Path, newer: Path, steps: Steps) -> None:
    """Require the versions of the newer release where they fit: each module is then compiled once for both."""
    own, shared = _requirements(source, steps), _requirements(newer, steps)
    names = [name for name in own if name in shared and not name.startswith(_NOT_ALIGNED)]
    _edit(source, steps, [f"-require={name}@{shared[name]}" for name in names])
    sums = {line for module in (source, newer) for line in (module / "go.sum").read_text("utf-8").splitlines()}
    (source / "go.sum").write_text("\n".join(sorted(sums)) + "\n", encoding="utf-8")


def _requirements(source: Path, steps: Steps) -> dict[str, str]:
    argv: Argv = [cache.provide(GO), "mod", "edit", "-json", source / "go.mod"]
    read = json.loads(steps.output("read its go.mod", argv, environment=golang.environment()))
    return {each["Path"]: each["Version"] for each in read["Require"]}


def _edit(source: Path, steps: Steps, edits: list[str]) -> None:
    argv: Argv = [cache.provide(GO), "mod", "edit", *edits]
    steps.run("edit its go.mod", argv, cwd=source, environment=golang.environment())


def _keep_components(directory: Path) -> None:
    for name in _COMPONENTS:
        if not (directory / f"{name}.go").exists():
            raise FileNotFoundError(f"this version of daprd has no component {name}")
    for file in directory.glob("*.go"):
        if file.stem not in (*_COMPONENTS, "zz_notag"):
            file.unlink()


def _recipe(name: str, version: str, programs: tuple[str, ...], find: Callable[[], Path | None] = not_found) -> Recipe:
    def build(result: Path, steps: Steps) -> None:
        source = result.with_name("source")
        _prepare(version, programs, source, steps).compile(result, steps)
        if programs == SERVICES:
            (source / "charts" / "dapr").rename(result / "chart")

    def fetch(scratch: Path, steps: Steps) -> None:
        _prepare(version, programs, scratch / "source", steps).fetch(steps)

    edits = (
        [VERSION, *_NOT_ALIGNED] if version != VERSION else [f"{module}@{other}" for module, other in _REPLACED.items()]
    )
    return Recipe(
        name,
        version,
        programs[0],
        build,
        inputs=(*COMPILER_FLAGS, _TAG, *_COMPONENTS, *programs, *edits),
        packages=("ca-certificates",),
        find=find,
        fetch=fetch,
    )


def _on_machine(version: str) -> Path | None:
    """Return a sidecar of exactly that version from the PATH or from the directory of Dapr's own installer."""
    for directory in (None, str(Path.home() / ".dapr" / "bin")):
        found = shutil.which("daprd", path=directory)
        if found and _version_of(found) == version:
            return Path(found)
    return None


def _version_of(binary: str) -> str:
    return subprocess.run([binary, "--version"], capture_output=True, text=True, check=False).stdout.strip()


def daprd(version: str) -> Recipe:
    """Return the recipe of the sidecar of a version; one on this machine is used if its version is exactly that."""
    return _recipe("daprd", version, ("daprd",), find=lambda: _on_machine(version))


def services(version: str) -> Recipe:
    """Return the recipe of the control plane's services of a version; their Helm chart lies beside them."""
    return _recipe("dapr-services", version, SERVICES)
