"""The cluster's name server."""

from pathlib import Path

from testbed.kube.control_plane import probe
from testbed.server import Server


class CoreDns(Server):
    """The names of a cluster's services and pods, and nothing else."""

    def __init__(self, binary: Path, directory: Path, address: str, kubeconfig: Path) -> None:
        super().__init__("coredns", directory, ["health"])
        self._binary = binary
        self._address = address
        self._kubeconfig = kubeconfig

    def command(self) -> list[str]:
        """The server with its settings in a file."""
        file = self.directory / "Corefile"
        file.write_text(
            _SETTINGS.format(address=self._address, health=self.ports["health"], kubeconfig=self._kubeconfig),
            encoding="utf-8",
        )
        return [str(self._binary), "-conf", str(file)]

    async def is_ready(self) -> bool:
        """Whether it runs."""
        return await probe(f"http://127.0.0.1:{self.ports['health']}/health")


_SETTINGS = """\
cluster.local:53 in-addr.arpa:53 {{
  bind {address}
  errors
  health 127.0.0.1:{health}
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {kubeconfig}
    pods insecure
    ttl 2
  }}
}}
"""
