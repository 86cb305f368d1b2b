"""TLS contexts of clusters: trusted authorities, client certificates, and the cache."""

import ssl

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from governor.errors import GovernorError, Kind
from governor.kube.config import tls_context
from governor.kube.config.tls_context import TlsConfig, TlsContextCache, make_context
from governor.values.secret import Secret
from testbed.kube.pki import Authority, Pair

AUTHORITY = Authority()
USER = AUTHORITY.issue("ann")


def tls_config(ca: bytes = AUTHORITY.certificate, user: Pair | None = None, **changed: bool) -> TlsConfig:
    certificate, key = (user.certificate, user.key.decode()) if user else (b"", "")
    return TlsConfig(ca, certificate, Secret(key), "", changed.get("insecure", False))


def test_only_the_clusters_authority_is_trusted() -> None:
    context = make_context(tls_config(user=USER))
    assert len(context.get_ca_certs()) == 1
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_without_an_authority_those_of_the_system_are_trusted() -> None:
    context = make_context(tls_config(b""))
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_verification_is_off_only_if_requested() -> None:
    context = make_context(tls_config(b"", insecure=True))
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)


@pytest.mark.parametrize(
    "ca", [b"nonsense", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", b"\xff"]
)
def test_a_malformed_authority_is_an_error(ca: bytes) -> None:
    with pytest.raises(GovernorError, match="certificate authority") as caught:
        make_context(tls_config(ca))
    assert caught.value.kind is Kind.INVALID


def test_a_key_of_another_certificate_is_an_error() -> None:
    other = AUTHORITY.issue("bob")
    with pytest.raises(GovernorError, match="does not belong to") as caught:
        make_context(tls_config(user=Pair(USER.certificate, other.key)))
    assert caught.value.code == "kube-client-certificate"


def test_an_encrypted_key_is_an_error_and_does_not_prompt_for_a_password() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x"))
    with pytest.raises(GovernorError, match="unencrypted"):
        make_context(tls_config(user=Pair(USER.certificate, locked)))


@pytest.mark.parametrize("pair", [Pair(b"nonsense", USER.key), Pair(USER.certificate, b"hunter2")])
def test_a_malformed_pair_is_an_error_that_does_not_quote_it(pair: Pair) -> None:
    with pytest.raises(GovernorError, match="not a PEM certificate") as caught:
        make_context(tls_config(user=pair))
    assert "hunter2" not in str(caught.value)


def test_equal_configurations_share_one_context() -> None:
    contexts = TlsContextCache()
    assert contexts.get(tls_config(user=USER)) is contexts.get(tls_config(user=USER))
    assert contexts.get(tls_config()) is not contexts.get(tls_config(user=USER))


def test_another_server_name_is_another_context() -> None:
    contexts = TlsContextCache()
    named = TlsConfig(AUTHORITY.certificate, b"", Secret(""), "inner", insecure=False)
    assert contexts.get(named) is not contexts.get(tls_config())


def test_the_least_recently_used_context_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_context, "MAX_CONTEXTS", 2)
    contexts = TlsContextCache()
    first, second, third = (tls_config(user=AUTHORITY.issue(name)) for name in "abc")
    kept = contexts.get(first)
    evicted = contexts.get(second)
    assert contexts.get(first) is kept
    contexts.get(third)
    assert contexts.get(first) is kept
    assert contexts.get(second) is not evicted
