"""One digest for trees: equal content gives an equal digest, whatever the key order.

A sealed leaf counts by its mac, so encrypting the same value again does not change a digest.
"""

import hashlib
from typing import Final

import msgspec

from governor.values.secret import Sealed
from governor.values.trees import Tree, map_leaves

_ENCODER: Final = msgspec.json.Encoder(order="sorted")


def canonical(tree: Tree) -> bytes:
    """Canonical JSON: sorted keys, no white space."""
    return _ENCODER.encode(tree)


def digest(tree: Tree) -> str:
    """``sha256:`` and the hex digest of the canonical form."""
    plain = map_leaves(tree, lambda _, leaf: {"$mac": leaf.mac} if isinstance(leaf, Sealed) else leaf)
    return f"sha256:{hashlib.sha256(canonical(plain)).hexdigest()}"
