"""Masks delivered secrets in texts that leave the machine: a sidecar's error may contain a password."""

from collections.abc import Iterable
from typing import Final

from governor.domain.dapr.sensitive import sensitive_paths
from governor.values.secret import MASK
from governor.values.trees import Manifest, leaf_at

_MIN_LENGTH: Final = 3
"""Shorter values occur in ordinary text."""


class Redactor:
    """Every sensitive value delivered since the agent started."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()

    def add(self, manifests: Iterable[Manifest]) -> None:
        """Add the sensitive values of some resources."""
        for manifest in manifests:
            values = (str(leaf_at(manifest, path)) for path in sensitive_paths(manifest))
            self._secrets.update(value for value in values if len(value) >= _MIN_LENGTH)

    def redact(self, text: str) -> str:
        """Return the text with every known value masked."""
        # Longest first: a value may contain a shorter one.
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, MASK)
        return text
