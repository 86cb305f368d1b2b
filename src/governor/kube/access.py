"""How one cluster is reached and as whom; a value, made from a kubeconfig or from inside a pod."""

import msgspec

from governor.values.secret import Secret


class ClientCertificate(msgspec.Struct, frozen=True):
    """Shown in the TLS handshake; both PEM."""

    certificate: bytes
    key: Secret


class Access(msgspec.Struct, frozen=True):
    """One API server and the credential for it."""

    server: str
    """Its URL, without a slash at the end; may hold a path."""
    ca: bytes = b""
    """The only authority trusted, PEM; empty for those of the system."""
    client_certificate: ClientCertificate | None = None
    token: Secret | None = None
    namespace: str = "default"
