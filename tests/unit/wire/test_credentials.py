"""Keys and tokens: forged ones are rejected, and no error repeats a secret."""

import base64
import hashlib
import hmac
import json
import traceback
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import GovernorError, Kind
from governor.values.secret import MASK, Secret
from governor.wire.credentials import (
    AUDIENCE,
    LIFETIME_S,
    JoinToken,
    claimed_runtime,
    encode_public_key,
    key_id,
    mint,
    read_join_token,
    read_public_key,
    verify,
)
from governor.wire.rest import EnrolRequest, TokenCreated, TokenView
from tests.unit.values.strategies import CANARY

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
PUBLIC = KEY.public_key()
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
CLAIMS: dict[str, Any] = {
    "sub": "r1",
    "aud": AUDIENCE,
    "iat": int(NOW.timestamp()),
    "exp": int(NOW.timestamp()) + LIFETIME_S,
}


def token(key: Any = KEY, algorithm: str = "EdDSA", **claims: Any) -> Secret:
    present = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    return Secret(jwt.encode(present, key, algorithm=algorithm))


def segment(value: object) -> str:
    return segment_of(json.dumps(value).encode())


def segment_of(text: bytes) -> str:
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


def rejection(presented: Secret, runtime: str = "r1", now: datetime = NOW) -> GovernorError:
    with pytest.raises(GovernorError) as caught:
        verify(presented, runtime, PUBLIC, now)
    assert (caught.value.kind, caught.value.code) == (Kind.UNAUTHENTICATED, "token-refused")
    assert len(presented.reveal()) < 8 or presented.reveal() not in printed(caught.value)
    return caught.value


def printed(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


# -- tokens of runtimes --------------------------------------------------------------------------------------------


def test_a_minted_token_names_its_runtime_and_is_accepted() -> None:
    minted = mint("r1", KEY, NOW)
    assert claimed_runtime(minted) == "r1"
    verify(minted, "r1", PUBLIC, NOW)
    assert jwt.get_unverified_header(minted.reveal()) == {"alg": "EdDSA", "typ": "JWT", "kid": key_id(PUBLIC)}


@pytest.mark.parametrize(("seconds", "accepted"), [(-61, False), (-60, True), (0, True), (360, True), (361, False)])
def test_a_token_is_accepted_within_its_lifetime_and_a_minute_of_leeway(seconds: int, accepted: bool) -> None:
    now = NOW + timedelta(seconds=seconds)
    minted = mint("r1", KEY, NOW)
    if accepted:
        verify(minted, "r1", PUBLIC, now)
    else:
        assert "compare the clocks" in rejection(minted, now=now).message


@pytest.mark.parametrize(
    "presented",
    [
        token(OTHER),
        token(sub="r2"),
        token(sub=5),
        token(sub=["r1"]),
        token(exp=CLAIMS["exp"] + 1),
        token(exp=CLAIMS["exp"] + 10**6),
        token(iat=CLAIMS["iat"] - 10**6),
        token(aud="another"),
        token(aud=5),
        token(sub=None),
        token(aud=None),
        token(iat=None),
        token(exp=None),
        token(iat="now"),
        token(exp="later"),
        token(exp=[CLAIMS["exp"]]),
        token(iat=True, exp=True),
        token(iat=float("nan"), exp=float("nan")),
        token(exp=float("inf")),
        token(iat=float("-inf"), exp=float("inf")),
        token(nbf=CLAIMS["iat"] + 120),
        token(nbf="later"),
        token("", algorithm="none"),
        token(PUBLIC.public_bytes_raw(), algorithm="HS256"),
        token(base64.b64encode(PUBLIC.public_bytes_raw()), algorithm="HS256"),
    ],
)
def test_a_token_with_a_wrong_key_or_claim_is_rejected(presented: Secret) -> None:
    rejection(presented)


def test_a_token_signed_with_the_public_key_as_a_secret_is_rejected() -> None:
    """PyJWT refuses to create such a token, so it is built by hand."""
    for public in (
        PUBLIC.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        PUBLIC.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH),
        encode_public_key(PUBLIC).encode(),
        PUBLIC.public_bytes_raw(),
    ):
        signed = f"{segment({'alg': 'HS256', 'typ': 'JWT'})}.{segment(CLAIMS)}"
        mac = base64.urlsafe_b64encode(hmac.digest(public, signed.encode(), hashlib.sha256)).decode().rstrip("=")
        rejection(Secret(f"{signed}.{mac}"))


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "", "HS256", "RS256", "ES256", "Ed25519x"])
@pytest.mark.parametrize("signature", ["", "AAAA"])
def test_another_algorithm_is_rejected(algorithm: str, signature: str) -> None:
    rejection(Secret(f"{segment({'alg': algorithm, 'typ': 'JWT'})}.{segment(CLAIMS)}.{signature}"))


def test_a_changed_claim_breaks_the_signature() -> None:
    header, _, signature = token().reveal().split(".")
    rejection(Secret(f"{header}.{segment({**CLAIMS, 'exp': CLAIMS['exp'] - 1})}.{signature}"))


DEEP = segment_of(b"[" * 30_000)
LONG = segment_of(b'{"sub": ' + b"1" * 9000 + b"}")
EDDSA = segment({"alg": "EdDSA"})
GARBAGE = [
    "",
    ".",
    "..",
    "a.b.c",
    "ä.ö.ü",
    "\ud800",
    "x" * 10_000,
    f"{segment({})}.{segment([])}.",
    f"{EDDSA}.{segment('sub')}.",
    f"{EDDSA}.{DEEP}.AAAA",
    f"{DEEP}.{segment(CLAIMS)}.AAAA",
    f"{EDDSA}.{LONG}.AAAA",
    f"{segment({'alg': ['EdDSA']})}.{segment(CLAIMS)}.AAAA",
    f"{segment({'alg': 'EdDSA', 'crit': ['x']})}.{segment(CLAIMS)}.AAAA",
]


@pytest.mark.parametrize("text", GARBAGE, ids=range(len(GARBAGE)))
def test_a_malformed_token_is_rejected(text: str) -> None:
    with pytest.raises(GovernorError) as caught:
        verify(Secret(text), claimed_runtime(Secret(text)), PUBLIC, NOW)
    assert caught.value.kind is Kind.UNAUTHENTICATED
    rejection(Secret(text))


@given(st.text(max_size=40))
def test_any_text_is_rejected(text: str) -> None:
    with pytest.raises(GovernorError):
        verify(Secret(text), "r1", PUBLIC, NOW)


@pytest.mark.parametrize("runtime", ["\ud800", "r1\udfff", "\udc00\ud800"])
def test_a_claim_with_half_of_a_surrogate_pair_is_rejected(runtime: str) -> None:
    text = f"{segment({'alg': 'EdDSA', 'typ': 'JWT'})}.{segment({'sub': runtime})}.{segment_of(bytes(64))}"
    with pytest.raises(GovernorError) as caught:
        claimed_runtime(Secret(text))
    assert (caught.value.kind, caught.value.code) == (Kind.UNAUTHENTICATED, "token-refused")


def test_a_token_without_a_runtime_claims_none() -> None:
    assert claimed_runtime(token(sub=None)) == ""


# -- join tokens ---------------------------------------------------------------------------------------------------

JOIN = JoinToken("https://governor.example:8420", "r1", CANARY, "ab" * 32)


def test_a_join_token_survives_the_round_trip() -> None:
    assert read_join_token(JOIN.encode()) == JOIN
    assert read_join_token(Secret(f"  {JOIN.encode().reveal()}\n")) == JOIN
    assert JOIN.encode().reveal().startswith("rgj1.")


def encoded(value: object) -> str:
    return f"rgj1.{segment(value)}"


WHOLE = JOIN.encode().reveal()
MALFORMED_JOIN_TOKENS = {
    "empty": "",
    "another text": CANARY,
    "no body": "rgj1.",
    "another version": WHOLE.replace("rgj1", "rgj2"),
    "no prefix": WHOLE.removeprefix("rgj1."),
    "not base64": f"rgj1.{CANARY}!{WHOLE[6:]}",
    "foreign letters inside": f"{WHOLE[:20]}    {WHOLE[20:]}",
    "not ASCII": f"{WHOLE}ä",
    "not JSON": f"rgj1.{segment_of(CANARY.encode())}",
    "not UTF-8": "rgj1." + segment_of(b'{"server":"\xff' + CANARY.encode() + b'"}'),
    "too deep": f"rgj1.{DEEP}",
    "not a map": encoded([CANARY]),
    "no secret": encoded({"server": CANARY, "runtime": "r1"}),
    "wrong types": encoded({"server": CANARY, "runtime": "r1", "secret": [CANARY]}),
    "appended": f"{WHOLE}AAAA",
}


@pytest.mark.parametrize("text", MALFORMED_JOIN_TOKENS.values(), ids=MALFORMED_JOIN_TOKENS)
def test_a_malformed_join_token_is_rejected_without_repeating_it(text: str) -> None:
    with pytest.raises(GovernorError) as caught:
        read_join_token(Secret(text))
    assert (caught.value.kind, caught.value.code) == (Kind.INVALID, "join-token-unreadable")
    assert "governor token join" in caught.value.message
    assert CANARY not in printed(caught.value)


@pytest.mark.parametrize("length", range(len(WHOLE)))
def test_a_truncated_join_token_is_rejected(length: int) -> None:
    with pytest.raises(GovernorError) as caught:
        read_join_token(Secret(WHOLE[:length]))
    assert caught.value.code == "join-token-unreadable"
    assert CANARY not in printed(caught.value)


@pytest.mark.parametrize(
    "holder",
    [
        JOIN,
        EnrolRequest("r1", CANARY, "key"),
        TokenCreated(TokenView("id", "name", None, None, NOW, None, revoked=False), CANARY),
    ],
)
def test_a_struct_with_a_secret_prints_it_masked(holder: msgspec.Struct) -> None:
    for shown in (repr(holder), str(holder), f"{[holder]}"):
        assert CANARY not in shown
        assert MASK in shown


# -- keys ----------------------------------------------------------------------------------------------------------


def test_a_public_key_survives_the_round_trip() -> None:
    assert read_public_key(encode_public_key(PUBLIC)).public_bytes_raw() == PUBLIC.public_bytes_raw()
    assert key_id(PUBLIC) == "56475aa75463474c"
    assert key_id(OTHER.public_key()) != key_id(PUBLIC)


@pytest.mark.parametrize("text", ["", "AAAA", encode_public_key(PUBLIC) + "AAAA", "!" * 44, "ä" * 44, "\n" * 44])
def test_a_malformed_public_key_is_rejected(text: str) -> None:
    with pytest.raises(GovernorError) as caught:
        read_public_key(text)
    assert (caught.value.kind, caught.value.code) == (Kind.INVALID, "public-key-unreadable")
