"""Access of the product's client to the control planes that the test bed starts."""

from functools import cached_property

from governor.kube.client import Client, Transport
from governor.kube.config.access import Access, ClientCertificate
from governor.values.secret import Secret
from testbed.kube.api_faults import ApiFaults
from testbed.kube.control_plane import ControlPlane
from testbed.kube.pki import Pair


def admin_of(plane: ControlPlane) -> Access:
    """Return the administrator's access to a control plane."""
    return Access(plane.url, plane.authority.certificate, certificate_of(plane.admin))


def account_of(plane: ControlPlane, token: str) -> Access:
    """Return access with a token."""
    return Access(plane.url, plane.authority.certificate, token=Secret(token))


def certificate_of(pair: Pair) -> ClientCertificate:
    """Convert a key pair of the test bed into a client certificate of the product."""
    return ClientCertificate(pair.certificate, Secret(pair.key.decode()))


class FaultyApi(ApiFaults):
    """Fault-injecting proxy in front of an API server; it authenticates every caller as administrator."""

    def __init__(self, plane: ControlPlane, transport: Transport, prefix: str = "") -> None:
        super().__init__(plane, plane.admin, prefix)
        self._transport = transport

    @property
    def access(self) -> Access:
        """Access through the proxy."""
        return Access(self.url, self._plane.authority.certificate)

    @cached_property
    def client(self) -> Client:
        """A client that connects through the proxy."""
        return Client(self._transport, self.access)
