"""A cluster for tests of ``governor.kube``: how the product's client reaches what the test bed starts."""

from functools import cached_property

from governor.kube.client import Client, Transport
from governor.kube.config.access import Access, ClientCertificate
from governor.values.secret import Secret
from testbed.kube.api_faults import ApiFaults
from testbed.kube.control_plane import ControlPlane
from testbed.kube.pki import Pair


def admin_of(plane: ControlPlane) -> Access:
    """Full access to a control plane."""
    return Access(plane.url, plane.authority.certificate, certificate_of(plane.admin))


def account_of(plane: ControlPlane, token: str) -> Access:
    """Access with a token."""
    return Access(plane.url, plane.authority.certificate, token=Secret(token))


def certificate_of(pair: Pair) -> ClientCertificate:
    """A certificate of the test bed, as the product knows it."""
    return ClientCertificate(pair.certificate, Secret(pair.key.decode()))


class FaultyApi(ApiFaults):
    """A server that breaks as told, and whose administrator everybody is who reaches it."""

    def __init__(self, plane: ControlPlane, transport: Transport, prefix: str = "") -> None:
        super().__init__(plane, plane.admin, prefix)
        self._transport = transport

    @property
    def access(self) -> Access:
        """What leads through the proxy."""
        return Access(self.url, self._plane.authority.certificate)

    @cached_property
    def client(self) -> Client:
        """The client that goes through the proxy."""
        return Client(self._transport, self.access)
