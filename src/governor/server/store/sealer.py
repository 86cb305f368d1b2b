"""Encryption of sensitive values at rest: AES-256-GCM with a keyed MAC, under a key stored outside the database.

Which values are sensitive is decided elsewhere.
"""

import base64
import hashlib
import hmac
import os
from typing import Any, Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from governor.errors import GovernorError, Kind
from governor.values.secret import Sealed
from governor.values.trees import Tree, map_leaves

KEY_BYTES: Final = 32
_VERSION: Final = "v1"
_NONCE_BYTES: Final = 12


class Sealer:
    """Seals and opens values with keys derived from one master key."""

    def __init__(self, master_key: bytes) -> None:
        self.key_id = _derive(master_key, b"key id", 8).hex()
        self._cipher = AESGCM(_derive(master_key, b"encryption", KEY_BYTES))
        self._mac_key = _derive(master_key, b"mac", KEY_BYTES)

    def seal(self, value: Any) -> Sealed:
        """Encrypt a JSON value; equal values have equal MACs and different boxes."""
        plain = msgspec.json.encode(value, order="sorted")
        mac = hmac.new(self._mac_key, plain, hashlib.sha256).hexdigest()
        nonce = os.urandom(_NONCE_BYTES)
        box = base64.urlsafe_b64encode(nonce + self._cipher.encrypt(nonce, plain, mac.encode())).decode()
        return Sealed(f"{_VERSION}.{self.key_id}.{box}", mac)

    def open(self, sealed: Sealed) -> Any:
        """Decrypt a value; raise if it was sealed with another key, altered, or paired with another MAC."""
        version, _, rest = sealed.box.partition(".")
        key_id, _, box = rest.partition(".")
        if (version, key_id) != (_VERSION, self.key_id):
            message = (
                f"a value is sealed with key {key_id} in format {version}, "
                f"but this server has key {self.key_id}; provide the original key"
            )
            raise GovernorError(Kind.INTERNAL, "sealed-foreign", message)
        data = base64.urlsafe_b64decode(box)
        try:
            plain = self._cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], sealed.mac.encode())
        except InvalidTag as error:
            raise GovernorError(
                Kind.INTERNAL,
                "sealed-altered",
                "a sealed value in the database was altered; restore the database from a backup",
            ) from error
        return msgspec.json.decode(plain)

    def open_tree(self, tree: Tree) -> Tree:
        """Return the tree with all sealed leaves decrypted; only for sending it to its runtime."""
        return map_leaves(tree, lambda _, leaf: self.open(leaf) if isinstance(leaf, Sealed) else leaf)


def _derive(master_key: bytes, purpose: bytes, length: int) -> bytes:
    info = b"runtime-governor sealing " + _VERSION.encode() + b" " + purpose
    return HKDF(algorithm=SHA256(), length=length, salt=None, info=info).derive(master_key)
