"""A private containerd: its root, state and socket lie in a directory of its own.

How it is built or unpacked is in ``testbed.builds.containerd``.
"""

import asyncio
from pathlib import Path

from testbed.builds.containerd import CONTAINERD
from testbed.server import Server, short_socket
from toolchain import cache
from toolchain.errors import TestbedError

PAUSE = "local.test/pause:1"
NAMESPACE = "k8s.io"
"""Where containerd keeps what kubelet may use."""
_ANSWER_WITHIN_S = 120.0
PLUGINS = Path("/usr/lib/cni")


class Containerd(Server):
    """A containerd with kubelet's interface and pods on one bridge."""

    def __init__(self, binary: Path, directory: Path, cni: Path, plugins: Path = PLUGINS) -> None:
        super().__init__("containerd", directory, [])
        self._binary = binary
        self._cni = cni
        self._plugins = plugins
        self.socket = short_socket(directory / "sock", ".ttrpc")
        self.registries = directory / "registries"
        """A directory ``HOST:PORT`` with a file ``hosts.toml`` for each registry without TLS; read at each pull."""

    def command(self) -> list[str]:
        """Return the command line; the settings are in a file."""
        file = self.directory / "config.toml"
        file.write_text(self._settings(), encoding="utf-8")
        return [str(self._binary), "--config", str(file)]

    def environment(self) -> dict[str, str]:
        """Return the environment: containerd finds its shim and runc on the PATH."""
        path = f"{self._binary.parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return {**super().environment(), "PATH": path}

    async def is_ready(self) -> bool:
        """Return whether its API responds."""
        try:
            await self.ctr("version")
        except TestbedError:
            return False
        return True

    async def ctr(self, *arguments: str) -> str:
        """Run containerd's own client and return its output."""
        argv = [str(self._binary.parent / "ctr"), f"--address={self.socket}", f"--namespace={NAMESPACE}", *arguments]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*argv, stdout=pipe, stderr=pipe)
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            printed, complaints = await process.communicate()
        if process.returncode != 0:
            raise TestbedError(f"ctr {' '.join(arguments)} failed: {complaints.decode()}")
        return printed.decode()

    def _settings(self) -> str:
        is_debian = self._binary == cache.executable_of(CONTAINERD)
        places = {
            "registries": self.registries,
            "directory": self.directory,
            "socket": self.socket,
            "cni": self._cni,
            "plugins": self._plugins,
        }
        return (_VERSION_2 if is_debian else _VERSION_3).format(**places, pause=PAUSE)


_VERSION_2 = """\
version = 2
root = "{directory}/root"
state = "{directory}/state"
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{directory}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{registries}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{cni}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
"""
_VERSION_3 = """\
version = 3
root = "{directory}/root"
state = "{directory}/state"
[grpc]
  address = "{socket}"
[ttrpc]
  address = "{socket}.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
  path = "{directory}/opt"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{pause}"
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "{registries}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{plugins}"]
    conf_dir = "{cni}"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""
