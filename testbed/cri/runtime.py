"""A real containerd with kubelet's interface and a network of pods, without kubelet and without a cluster.

containerd itself is in the machine's network, so that what it streams (exec, attach, port-forward) is reached at the
address that it tells; the pods' bridge is in a network of its own, so that any number of these run side by side.
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
    """It knows the images ``pause`` and ``busybox``; the cgroups of pods belong below the one called ``cgroup``."""

    def __init__(self, directory: Path, recipe: str = "containerd") -> None:
        super().__init__(directory, recipe, directory / "plugins", _MAKE_NETWORK)
        self.crictl = Crictl(self.socket)
        self._has_images = False

    def command(self) -> list[str]:
        """containerd, with its network plug-ins."""
        put(self.directory / "cni" / "10-pods.conflist", cni_config(_NETWORK, self.directory / "leases").encode())
        for name in ("bridge", "host-local", "loopback"):
            bridged = f"#!/bin/sh\nexec {_IN_NETWORK} {PLUGINS / name}\n"
            put(self._plugins / name, bridged.encode()).chmod(0o755)
        return super().command()

    async def start(self) -> Self:
        """Start; only the first time it has to be given the images."""
        await super().start()
        if not self._has_images:
            for archive in (images.pause(), images.busybox()):
                await self.import_image(archive)
            self._has_images = True
        return self

    async def is_ready(self) -> bool:
        """Whether kubelet would be answered; that comes a moment after containerd's own API."""
        try:
            await self.crictl("version")
        except TestbedError:
            return False
        return True

    async def stop(self) -> None:
        """End everything; containers of pods without a cgroup have theirs where containerd puts them."""
        tasks = self.directory / "state" / "io.containerd.runtime.v2.task" / NAMESPACE
        lost = [f"{NAMESPACE}/{task.name}" for task in tasks.glob("*")]
        await super().stop()
        remove(cgroup for name in lost for cgroup in below_hierarchies(name))
        for cgroup in below_hierarchies(NAMESPACE) if lost else ():
            with suppress(OSError):  # others have theirs there
                cgroup.rmdir()

    def setting(self, container_id: str, file: str) -> str:
        """What a file of a container's cgroup says, such as ``cpu.shares``."""
        for place in (f"{self.cgroup}/**/{container_id}/{file}", f"{NAMESPACE}/{container_id}/{file}"):
            for found in below_hierarchies(place):
                return found.read_text(encoding="utf-8").strip()
        raise TestbedError(f"no cgroup of container {container_id} has a file {file}")
