"""Credentials that were verified already, and the keys of runtimes, in memory; both are forgotten when revoked.

A token is found by its digest, never by its connection, because an ingress shares connections between agents.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from governor.domain.roles import Role
from governor.server.store.identities import RuntimeKey
from governor.values.secret import Secret
from governor.wire.credentials import Validity

_MAX_TOKENS: Final = 50_000
"""Several for each of ten thousand agents; the least recently used are forgotten."""


class Principal(msgspec.Struct, frozen=True):
    """The authenticated caller: a user or program with a role, or a runtime.

    ``credential`` identifies the token or key, whose revocation closes the caller's streams. ``is_legacy`` marks a
    caller of the legacy API without a credential.
    """

    name: str
    credential: str
    role: Role | None = None
    runtime: str | None = None
    is_legacy: bool = False


class _Verified(NamedTuple):
    principal: Principal
    validity: Validity


class KnownCredentials:
    """A cache of verified tokens and of the keys of enrolled runtimes."""

    def __init__(self) -> None:
        self._tokens: OrderedDict[bytes, _Verified] = OrderedDict()
        self._keys: dict[str, RuntimeKey] = {}
        self._of_credential: dict[str, set[bytes]] = {}
        self._runtimes_of_key: dict[str, set[str]] = {}

    def find(self, token: Secret, now_s: float) -> Principal | None:
        """Return the holder of a token that was verified before and is valid now."""
        digest = _digest(token)
        known = self._tokens.get(digest)
        if known is None:
            return None
        if not known.validity.covers(now_s):
            self._forget_token(digest)
            return None
        self._tokens.move_to_end(digest)
        return known.principal

    def remember(self, token: Secret, principal: Principal, validity: Validity) -> None:
        """Keep a token that was just verified."""
        digest = _digest(token)
        self._tokens[digest] = _Verified(principal, validity)
        self._of_credential.setdefault(principal.credential, set()).add(digest)
        if len(self._tokens) > _MAX_TOKENS:
            self._forget_token(next(iter(self._tokens)))

    def key_of(self, runtime: str) -> RuntimeKey | None:
        """Return the key of a runtime, if it is known."""
        return self._keys.get(runtime)

    def put_keys(self, keys: Iterable[RuntimeKey]) -> None:
        """Keep the keys of runtimes."""
        for key in keys:
            self._keys[key.runtime] = key
            self._runtimes_of_key.setdefault(key.key_id, set()).add(key.runtime)

    def forget(self, credential: str) -> None:
        """Forget a token or a key that was revoked or replaced, and all tokens that it has signed."""
        for digest in self._of_credential.pop(credential, ()):
            self._tokens.pop(digest, None)
        for runtime in self._runtimes_of_key.pop(credential, ()):
            if runtime in self._keys and self._keys[runtime].key_id == credential:
                del self._keys[runtime]

    def _forget_token(self, digest: bytes) -> None:
        credential = self._tokens.pop(digest).principal.credential
        digests = self._of_credential.get(credential, set())
        digests.discard(digest)
        if not digests:
            self._of_credential.pop(credential, None)


def _digest(token: Secret) -> bytes:
    return hashlib.sha256(token.reveal().encode("utf-8", "surrogatepass")).digest()
