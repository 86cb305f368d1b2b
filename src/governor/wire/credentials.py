"""Keys and tokens between agent and server: runtime JWTs and join tokens.

Pure cryptography over given keys and times; reading key files and looking up runtimes are excluded.
"""

import base64
import binascii
import hashlib
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from governor.errors import GovernorError, Kind, invalid
from governor.values.secret import MASK, Secret

AUDIENCE: Final = "runtime-governor"
LIFETIME_S: Final = 300
TOKEN_REJECTED: Final = "token-refused"  # noqa: S105 - an error code
"""Error code of every token that is wrong, used, expired or revoked."""
_LEEWAY_S: Final = 60
_JOIN_PREFIX: Final = "rgj1."


class JoinToken(msgspec.Struct, frozen=True):
    """Everything an agent needs to join; ``ca`` is the SHA-256 of the CA certificate, empty on loopback."""

    server: str
    runtime: str
    secret: str
    ca: str = ""

    def __repr__(self) -> str:
        return f"JoinToken(server={self.server!r}, runtime={self.runtime!r}, secret={MASK})"

    def encode(self) -> Secret:
        """Return the text that is passed to an agent."""
        body = base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")
        return Secret(_JOIN_PREFIX + body)


def read_join_token(text: Secret) -> JoinToken:
    """Decode a join token; the error does not repeat it."""
    prefix, dot, body = text.reveal().strip().partition(".")
    try:
        if prefix + dot != _JOIN_PREFIX:
            body = ""
        text_bytes = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(text_bytes, type=JoinToken)
    except (ValueError, binascii.Error, msgspec.MsgspecError) as error:
        message = "this is not a join token; create one with `governor token join RUNTIME`"
        raise invalid("join-token-unreadable", message) from error


def encode_public_key(key: Ed25519PublicKey) -> str:
    """Encode a public key as base64 of its 32 bytes."""
    return base64.b64encode(key.public_bytes_raw()).decode()


def read_public_key(text: str) -> Ed25519PublicKey:
    """Decode a public key from base64 of its 32 bytes."""
    try:
        return Ed25519PublicKey.from_public_bytes(base64.b64decode(text, validate=True))
    except (ValueError, binascii.Error) as error:
        raise invalid("public-key-unreadable", "not an Ed25519 public key; expected 32 bytes in base64") from error


def key_id(key: Ed25519PublicKey) -> str:
    """Return a short id derived from a key."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:16]


class _Claims(msgspec.Struct, frozen=True):
    """The required claims of a runtime's token; times in whole seconds since 1970."""

    sub: str
    iat: int
    exp: int
    nbf: int | None = None


def mint(runtime: str, key: Ed25519PrivateKey, now: datetime) -> Secret:
    """Return a short-lived JWT with which the holder of a key authenticates as a runtime."""
    claims = {"sub": runtime, "aud": AUDIENCE, "iat": now, "exp": now + timedelta(seconds=LIFETIME_S)}
    return Secret(jwt.encode(claims, key, algorithm="EdDSA", headers={"kid": key_id(key.public_key())}))


def claimed_runtime(token: Secret) -> str:
    """Return the runtime that a token claims, without verifying it."""
    try:
        claims = jwt.decode(token.reveal(), options={"verify_signature": False})
        runtime = str(claims.get("sub", ""))
        # JSON can escape half of a surrogate pair, which the database does not accept.
        runtime.encode()
    except (jwt.InvalidTokenError, UnicodeEncodeError) as error:
        raise _rejection("this is neither a user's nor a runtime's token") from error
    return runtime


class Validity(NamedTuple):
    """The first and the last time at which a credential is valid, in seconds since 1970."""

    from_s: float
    until_s: float

    def covers(self, now_s: float) -> bool:
        """Return whether the credential is valid at a time."""
        return self.from_s <= now_s <= self.until_s


def verify(token: Secret, runtime: str, key: Ed25519PublicKey, now: datetime) -> Validity:
    """Return when a token is valid; raise unless a key signed it for a runtime and it is valid now."""
    try:
        payload = jwt.decode(
            token.reveal(),
            key,
            algorithms=["EdDSA"],
            audience=AUDIENCE,
            # Times are checked below against the given clock.
            options={"verify_exp": False, "verify_iat": False, "verify_nbf": False},
        )
        claims = msgspec.convert(payload, _Claims)
    except (jwt.InvalidTokenError, UnicodeEncodeError) as error:
        raise _rejection(f"the token is not signed by the key of runtime {runtime!r}") from error
    except msgspec.ValidationError as error:
        raise _rejection(f"the token's claims are invalid: {error}") from error
    if claims.sub != runtime or claims.exp - claims.iat > LIFETIME_S:
        raise _rejection("the token is for another runtime, or its lifetime is too long")
    valid_from = claims.iat if claims.nbf is None else max(claims.iat, claims.nbf)
    validity = Validity(valid_from - _LEEWAY_S, claims.exp + _LEEWAY_S)
    if not validity.covers(now.timestamp()):
        raise _rejection("the token is expired or not valid yet; compare the clocks of agent and server")
    return validity


def _rejection(message: str) -> GovernorError:
    return GovernorError(Kind.UNAUTHENTICATED, TOKEN_REJECTED, message)
