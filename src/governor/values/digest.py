"""Digests of trees, independent of the order of keys.

A sealed leaf is represented by its MAC, so encrypting the same value again does not change the digest.
"""

import hashlib
from typing import Final

import msgspec

from governor.values.secret import Sealed
from governor.values.trees import Tree, map_leaves

_ENCODER: Final = msgspec.json.Encoder(order="sorted")


def canonical(tree: Tree) -> bytes:
    """Return canonical JSON: sorted keys, no white space."""
    return _ENCODER.encode(tree)


def digest(tree: Tree) -> str:
    """Return ``sha256:`` and the hex digest of the canonical form."""
    plain = map_leaves(tree, lambda _, leaf: {"$mac": leaf.mac} if isinstance(leaf, Sealed) else leaf)
    return f"sha256:{hashlib.sha256(canonical(plain)).hexdigest()}"
