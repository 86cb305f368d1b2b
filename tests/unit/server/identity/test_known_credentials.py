"""Verified tokens and keys in memory: found until they expire or are revoked."""

from datetime import UTC, datetime

import pytest

from governor.server.identity import known_credentials
from governor.server.identity.known_credentials import KnownCredentials, Principal
from governor.server.store.identities import RuntimeKey
from governor.values.secret import Secret
from governor.wire.credentials import Validity

ONE, TWO = Secret("token one"), Secret("token two")
AGENT = Principal("runtime r1", "key-1", runtime="r1")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def key(runtime: str, key_id: str = "key-1") -> RuntimeKey:
    return RuntimeKey(runtime, key_id, "public", NOW)


@pytest.fixture
def known() -> KnownCredentials:
    known = KnownCredentials()
    known.remember(ONE, AGENT, Validity(10, 20))
    return known


@pytest.mark.parametrize(("now_s", "found"), [(9, None), (10, AGENT), (20, AGENT), (21, None)])
def test_a_token_is_known_while_it_is_valid(known: KnownCredentials, now_s: float, found: Principal | None) -> None:
    assert known.find(ONE, now_s) == found
    assert known.find(TWO, now_s) is None


def test_an_expired_token_is_forgotten(known: KnownCredentials) -> None:
    assert known.find(ONE, 21) is None
    assert known.find(ONE, 15) is None


def test_revoking_a_credential_forgets_all_its_tokens_and_no_others(known: KnownCredentials) -> None:
    other = Principal("runtime r2", "key-2", runtime="r2")
    third = Secret("token three")
    known.remember(TWO, AGENT, Validity(10, 20))
    known.remember(third, other, Validity(10, 20))
    known.forget("key-1")
    assert [known.find(each, 15) for each in (ONE, TWO, third)] == [None, None, other]


def test_a_revoked_key_is_forgotten_for_every_runtime_that_still_has_it(known: KnownCredentials) -> None:
    known.put_keys([key("r1"), key("r2"), key("r3")])
    known.put_keys([key("r2", "key-9")])
    known.forget("key-1")
    assert [known.key_of(name) for name in ("r1", "r2", "r3")] == [None, key("r2", "key-9"), None]


def test_the_least_recently_used_token_is_forgotten_first(
    known: KnownCredentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_credentials, "_MAX_TOKENS", 2)
    known.remember(TWO, AGENT, Validity(10, 20))
    assert known.find(ONE, 15) == AGENT
    known.remember(Secret("token three"), AGENT, Validity(10, 20))
    assert (known.find(ONE, 15), known.find(TWO, 15)) == (AGENT, None)
