"""Address and credential source of one cluster, from a kubeconfig or from a pod's service account.

A ``Path`` in place of a value is a file that is read when needed, and again because it may be rotated. Reading and
renewing is ``credentials``.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from yarl import URL

from governor.errors import GovernorError, Kind, invalid
from governor.process import tls
from governor.process.proxy import Proxy, is_host, parse_url
from governor.values.secret import Secret

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DEFAULT_NAMESPACE: Final = "default"
POD_VARIABLE: Final = "KUBERNETES_SERVICE_HOST"
"""Environment variable that every pod has."""


class ClientCertificate(msgspec.Struct, frozen=True):
    """Client certificate and key for the TLS handshake, both PEM."""

    certificate: bytes | Path
    key: Secret | Path


class Impersonation(msgspec.Struct, frozen=True):
    """The user that requests impersonate."""

    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, str], ...] = ()
    """Pairs of a name and one of its values."""

    def __post_init__(self) -> None:
        texts = (self.user, self.uid, *self.groups, *(value for _, value in self.extra))
        if not self.user or not all(text.isprintable() for text in texts):
            raise invalid(
                "kube-impersonation", "an impersonated user needs a name, and no value may contain control characters"
            )


class ExecPlugin(msgspec.Struct, frozen=True):
    """A program that prints a credential as an ExecCredential of ``api_version``."""

    command: str
    api_version: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    install_hint: str = ""
    cluster_info: bool = False
    cluster_config: Any = None

    def __repr__(self) -> str:
        """Omit arguments and environment, which may contain passwords."""
        return f"ExecPlugin({self.command!r})"


class Credential(msgspec.Struct, frozen=True):
    """Trusted authority and client credential for one API server, with all files read."""

    ca: bytes = b""
    certificate: bytes = b""
    key: Secret = Secret("")
    token: Secret | None = None


class Access(msgspec.Struct, frozen=True):
    """One API server and the credential for it."""

    server: str
    """Its URL without a trailing slash; may contain a path."""
    ca: bytes | Path = b""
    """The only trusted authority, PEM; empty for the system's authorities."""
    client_certificate: ClientCertificate | None = None
    token: Secret | Path | None = None
    namespace: str = DEFAULT_NAMESPACE
    plugin: ExecPlugin | None = None
    tls_server_name: str = ""
    """Expected name in the server's certificate, if it differs from the host."""
    insecure: bool = False
    """Accept any server certificate; set only by the user's own kubeconfig."""
    proxy: Proxy | None = None
    """An https proxy needs a certificate of the cluster's authority."""
    impersonation: Impersonation | None = None

    def __post_init__(self) -> None:
        check_server(self.server)
        if self.proxy and URL(self.server).scheme != "https":
            raise invalid(
                "plain-text", "a server behind a proxy needs https://, otherwise the proxy can read the credential"
            )
        if self.tls_server_name and not is_host(self.tls_server_name):
            raise invalid("kube-server", "the tls-server-name of a cluster must be a host name")


def check_server(server: str) -> None:
    """Raise INVALID if the URL is no API server address or uses plain text beyond loopback."""
    url = parse_url(server)
    # The error omits the value: a URL with a user may contain a password.
    if url is None or url.user or url.password or server.endswith("/"):
        raise invalid(
            "kube-server",
            "the server of a cluster must look like https://host:port or https://host/path: "
            "no user, no query, no trailing slash",
        )
    tls.require_tls(url.host or "", protected=url.scheme == "https")


def in_cluster(environ: Mapping[str, str] = os.environ, account: Path = SERVICE_ACCOUNT) -> Access:
    """Return access to the cluster that this program runs in, as its pod's service account."""
    host, port = environ.get(POD_VARIABLE, ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    token, ca = account / "token", account / "ca.crt"
    if not host or not port:
        raise _not_in_cluster("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
    if missing := [str(path) for path in (token, ca) if not path.is_file()]:
        raise _not_in_cluster(f"{' and '.join(missing)} not found")
    address = f"[{host}]" if ":" in host else host
    return Access(f"https://{address}:{port}", ca=ca, token=token, namespace=_namespace(account / "namespace"))


def _namespace(file: Path) -> str:
    try:
        return file.read_text().strip() or DEFAULT_NAMESPACE
    except FileNotFoundError:
        return DEFAULT_NAMESPACE


def _not_in_cluster(reason: str) -> GovernorError:
    message = f"not running in a pod with a service account: {reason}; use a kubeconfig instead"
    return GovernorError(Kind.PRECONDITION, "kube-in-cluster", message)
