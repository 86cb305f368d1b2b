"""Certificates, tokens and kubeconfigs of the test bed have the requested contents."""

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jwt
import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import NameOID

from testbed.kube.pki import Authority, TokenKey, kubeconfig, put


def test_a_certificate_has_user_groups_and_issuer() -> None:
    authority = Authority()
    issued = x509.load_pem_x509_certificate(authority.issue("ann", groups=["one", "two"]).certificate)
    issued.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate))
    assert [each.value for each in issued.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["ann"]
    assert [each.value for each in issued.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)] == ["one", "two"]


def test_a_serving_certificate_has_addresses_and_names() -> None:
    certificate = x509.load_pem_x509_certificate(Authority().issue("s", hosts=["127.0.0.1", "a.example"]).certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["a.example"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]


@pytest.mark.parametrize("valid_for_s", [-3600.0, 5.0, 3600.0])
def test_a_certificate_expires_as_requested_even_in_the_past(valid_for_s: float) -> None:
    before = datetime.now(UTC)
    certificate = x509.load_pem_x509_certificate(Authority().issue("ann", valid_for_s=valid_for_s).certificate)
    end = certificate.not_valid_after_utc - timedelta(seconds=valid_for_s)
    assert before - timedelta(seconds=1) <= end <= datetime.now(UTC)
    assert certificate.not_valid_before_utc < certificate.not_valid_after_utc


def test_a_certificate_is_not_valid_for_another_authority() -> None:
    issued = x509.load_pem_x509_certificate(Authority().issue("ann").certificate)
    with pytest.raises(InvalidSignature):
        issued.verify_directly_issued_by(x509.load_pem_x509_certificate(Authority().certificate))


def test_a_token_has_one_account_and_expires_as_requested() -> None:
    key = TokenKey()
    token = key.sign({"metadata": {"namespace": "shop", "name": "orders", "uid": "u-1"}}, 4_000_000_000)
    claims = jwt.decode(token, key.public, algorithms=["ES256"], audience="https://kubernetes.default.svc")
    assert (claims["sub"], claims["exp"]) == ("system:serviceaccount:shop:orders", 4_000_000_000)
    assert claims["kubernetes.io"]["serviceaccount"] == {"name": "orders", "uid": "u-1"}


def test_a_kubeconfig_contains_the_certificate_or_the_token() -> None:
    authority = Authority()
    user = authority.issue("ann")
    by_certificate = json.loads(kubeconfig("https://a.example", authority.certificate, user))
    assert by_certificate["clusters"][0]["cluster"]["server"] == "https://a.example"
    assert base64.b64decode(by_certificate["users"][0]["user"]["client-key-data"]) == user.key
    by_token = json.loads(kubeconfig("https://a.example", authority.certificate, "some-token"))
    assert by_token["users"][0]["user"] == {"token": "some-token"}


def test_files_with_keys_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    certificate, key = Authority().issue("ann").put(tmp_path / "new", "ann")
    assert {each.stat().st_mode & 0o777 for each in (certificate, key)} == {0o600}
    assert put(key, b"other") == key
    assert key.read_bytes() == b"other"
    assert sorted(each.name for each in key.parent.iterdir()) == ["ann.crt", "ann.key"]
