"""A real containerd with CRI and a pod network, without kubelet and cluster.

containerd is in the host's network, so its streaming server (exec, attach, port-forward) is reachable at the address
that it returns. The pods' bridge is in a private network namespace, so several runtimes can run concurrently.
"""

from contextlib import suppress
from pathlib import Path
from typing import Self

from testbed import images
from testbed.cluster.network import Network, cni_config
from testbed.cri.containerd import NAMESPACE, PLUGINS
from testbed.cri.containers import PrivateContainerd
from testbed.cri.crictl import Crictl
from testbed.kube.pki import put
from testbed.linux.cgroups import below_hierarchies, remove
from toolchain.errors import TestbedError

_NETWORK = Network("10.77.0.0/16")
_MAKE_NETWORK = "ip netns add pods"
_IN_NETWORK = "nsenter --net=/run/netns/pods"


class CriRuntime(PrivateContainerd):
    """A containerd with the images ``pause`` and ``busybox``; tests put pods' cgroups below ``cgroup``."""

    def __init__(self, directory: Path, recipe: str = "containerd") -> None:
        super().__init__(directory, recipe, directory / "plugins", _MAKE_NETWORK)
        self.crictl = Crictl(self.socket)
        self._has_images = False

    def command(self) -> list[str]:
        """Write the CNI plugins and their configuration, and return the command line."""
        put(self.directory / "cni" / "10-pods.conflist", cni_config(_NETWORK, self.directory / "leases").encode())
        for name in ("bridge", "host-local", "loopback"):
            wrapper = f"#!/bin/sh\nexec {_IN_NETWORK} {PLUGINS / name}\n"
            put(self._plugins / name, wrapper.encode()).chmod(0o755)
        return super().command()

    async def start(self) -> Self:
        """Start, and import the images the first time."""
        await super().start()
        if not self._has_images:
            for archive in (images.pause(), images.busybox()):
                await self.import_image(archive)
            self._has_images = True
        return self

    async def is_ready(self) -> bool:
        """Return whether CRI is served, which is a moment after containerd's own API."""
        if not self.socket.exists():  # each query is a process
            return False
        try:
            await self.crictl("version")
        except TestbedError:
            return False
        return True

    async def stop(self) -> None:
        """End everything, and remove the cgroups that containerd chose for pods without a cgroup parent."""
        tasks = self.directory / "state" / "io.containerd.runtime.v2.task" / NAMESPACE
        orphans = [f"{NAMESPACE}/{task.name}" for task in tasks.glob("*")]
        await super().stop()
        remove(cgroup for name in orphans for cgroup in below_hierarchies(name))
        for cgroup in below_hierarchies(NAMESPACE) if orphans else ():
            with suppress(OSError):  # another runtime has cgroups there
                cgroup.rmdir()

    def setting(self, container_id: str, file: str) -> str:
        """Return the content of a file in a container's cgroup, such as ``cpu.shares``."""
        for pattern in (f"{self.cgroup}/**/{container_id}/{file}", f"{NAMESPACE}/{container_id}/{file}"):
            for found in below_hierarchies(pattern):
                return found.read_text(encoding="utf-8").strip()
        raise TestbedError(f"no cgroup of container {container_id} has a file {file}")
