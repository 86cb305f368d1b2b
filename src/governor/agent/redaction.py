"""Takes delivered secrets out of texts that leave the machine: a sidecar's error may repeat a password."""

from collections.abc import Iterable
from typing import Final

from governor.domain.dapr.sensitive import sensitive_paths
from governor.values.secret import MASK
from governor.values.trees import Manifest, leaf_at

_SHORTEST: Final = 3
"""Shorter values occur in any text by chance."""


class Redactor:
    """Knows every sensitive value that was delivered since the agent started."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()

    def add(self, manifests: Iterable[Manifest]) -> None:
        """Remember the sensitive values of these resources."""
        for manifest in manifests:
            values = (str(leaf_at(manifest, path)) for path in sensitive_paths(manifest))
            self._secrets.update(value for value in values if len(value) >= _SHORTEST)

    def redact(self, text: str) -> str:
        """The text without any of them; a longer one goes before a shorter one that it contains."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, MASK)
        return text
