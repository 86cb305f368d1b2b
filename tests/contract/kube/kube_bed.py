"""A cluster for tests of ``governor.kube``: how the product's client reaches what the test bed starts."""

from governor.kube.access import Access, ClientCertificate
from governor.values.secret import Secret
from testbed.control_plane import ControlPlane
from testbed.pki import Pair


def admin_of(plane: ControlPlane) -> Access:
    """Full access to a control plane."""
    return Access(plane.url, plane.authority.certificate, certificate_of(plane.admin))


def account_of(plane: ControlPlane, token: str) -> Access:
    """Access with a token."""
    return Access(plane.url, plane.authority.certificate, token=Secret(token))


def certificate_of(pair: Pair) -> ClientCertificate:
    """A certificate of the test bed, as the product knows it."""
    return ClientCertificate(pair.certificate, Secret(pair.key.decode()))
