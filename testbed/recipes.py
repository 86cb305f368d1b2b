"""The servers that tests, demo and benchmarks ask for by name, and how they are provided."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from testbed.builds import kubernetes
from testbed.builds.containerd import CONTAINERD, CONTAINERD_2
from testbed.builds.dapr import SERVICES, VERSION, VERSION_1_16, daprd, services
from testbed.builds.docker import DOCKER
from testbed.builds.kubernetes import CLIENT_GO, CLIENT_GO_WORKER, CRI_TOOLS, ETCD, KUBERNETES
from testbed.builds.own_module import ALERT_CHECK, REGISTRY
from testbed.redis import REDIS
from toolchain import cache, debian, golang
from toolchain.errors import TestbedError
from toolchain.helm import HELM
from toolchain.recipe import Recipe
from toolchain.renderer import RENDERER
from toolchain.repository import REPOSITORY
from toolchain.steps import Steps


class Server(NamedTuple):
    """A program, and the recipe that provides it."""

    recipe: Recipe
    program: str


SERVERS = {
    "daprd": Server(daprd(VERSION), "daprd"),
    "redis": Server(REDIS, REDIS.executable),
    "etcd": Server(ETCD, "etcd"),
    **{name: Server(KUBERNETES, name) for name in (*kubernetes.PROGRAMS, "coredns")},
    "containerd": Server(CONTAINERD, "containerd"),
    "containerd-2": Server(CONTAINERD_2, "containerd"),
    "crictl": Server(CRI_TOOLS, "crictl"),
    "dockerd": Server(DOCKER, "dockerd"),
    "docker": Server(DOCKER, "docker"),
    "cri-client": Server(CRI_TOOLS, "cri-client"),
    CLIENT_GO_WORKER: Server(CLIENT_GO, CLIENT_GO_WORKER),
    "helm": Server(HELM, "helm"),
    "alert-check": Server(ALERT_CHECK, ALERT_CHECK.executable),
    "registry": Server(REGISTRY, REGISTRY.executable),
    "renderer": Server(RENDERER, RENDERER.executable),
    "dapr-services": Server(services(VERSION), SERVICES[0]),
    "daprd-1.16": Server(daprd(VERSION_1_16), "daprd"),
    "dapr-services-1.16": Server(services(VERSION_1_16), SERVICES[0]),
}


def require_packages(names: Iterable[str]) -> None:
    """Install the Debian packages of all named servers at once; without root, name all of them in one error."""
    absent = [recipe for recipe in _recipes(names) if not _is_present(recipe)]
    debian.require(package for recipe in absent for package in recipe.packages)


def provide(names: Iterable[str]) -> dict[str, Path]:
    """Return the executable of each named server: found, cached, or built now."""
    names = list(names)
    require_packages(names)
    absent = [recipe for recipe in _recipes(names) if not _is_present(recipe)]
    with golang.caches_in_use() if absent else contextlib.nullcontext(), _fetching(absent[1:]):
        return {name: cache.provide(recipe).with_name(program) for name, (recipe, program) in _named(names)}


def fetch(keys: Iterable[str]) -> None:
    """Download what the builds of these recipes need; each build waits only for what is still missing."""
    by_key = {server.recipe.key: server.recipe for server in SERVERS.values()}
    for recipe in (by_key[key] for key in keys):
        if recipe.fetch is not None:
            with tempfile.TemporaryDirectory(dir=cache.root(), prefix=".fetch-") as scratch:
                recipe.fetch(Path(scratch), Steps(recipe.name, cache.log_of(f"fetch-{recipe.key}"), Path(scratch)))


@contextlib.contextmanager
def _fetching(recipes: Sequence[Recipe]) -> Iterator[None]:
    """Download for these recipes in the background, while the ones before them compile."""
    if not recipes:
        yield
        return
    argv = [sys.executable, "-m", "testbed", "fetch", *(recipe.key for recipe in recipes)]
    quiet = subprocess.DEVNULL
    # A failure is not reported here: the build needs the same downloads, fails on them and names its log.
    process = subprocess.Popen(argv, cwd=REPOSITORY, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def _named(names: Iterable[str]) -> list[tuple[str, Server]]:
    for name in names:
        if name not in SERVERS:
            raise TestbedError(f"no server is called {name!r}; known are {', '.join(SERVERS)}")
    return [(name, SERVERS[name]) for name in names]


def _recipes(names: Iterable[str]) -> list[Recipe]:
    return list({server.recipe.key: server.recipe for _, server in _named(names)}.values())


def _is_present(recipe: Recipe) -> bool:
    return cache.executable_of(recipe).exists() or recipe.find() is not None
