"""Both homes of the agent's state."""

from pathlib import Path

from governor.agent.state.agent_state import Blobs
from governor.agent.state.file_blobs import FileBlobs
from governor.agent.state.secret_blobs import SecretBlobs
from governor.kube.client import Client


class Home:
    """One home; ``open`` opens it as each start of the agent does."""

    def __init__(self, kind: str, client: Client, namespace: str, directory: Path) -> None:
        self._kind = kind
        self._client = client
        self._namespace = namespace
        self._directory = directory

    async def open(self) -> Blobs:
        if self._kind == "files":
            return FileBlobs(self._directory)
        return await SecretBlobs.open(self._client, self._namespace, "agent")
