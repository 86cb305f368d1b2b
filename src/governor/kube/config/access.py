"""How one cluster is reached and as whom: a value, made from a kubeconfig or from inside a pod.

Where it has a ``Path`` in place of a text, the file is read when it is needed, and again, because it may be rotated;
reading and renewing is in ``credentials``.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from yarl import URL

from governor.errors import GovernorError, Kind, invalid
from governor.process import tls
from governor.values.secret import Secret

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
NAMESPACE: Final = "default"

_MISREAD: Final = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029\ud800-\udfff?#]")
"""What a URL is read without, or what begins another part of it."""


class ClientCertificate(msgspec.Struct, frozen=True):
    """Shown in the TLS handshake; both PEM."""

    certificate: bytes | Path
    key: Secret | Path


class Proxy(msgspec.Struct, frozen=True):
    """What connections go through; an https one must be trusted by the same authority as the cluster."""

    url: str
    authorization: Secret | None = None


class Impersonation(msgspec.Struct, frozen=True):
    """Whom the server shall take us for."""

    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, str], ...] = ()
    """A name with each of its values."""

    def __post_init__(self) -> None:
        texts = (self.user, self.uid, *self.groups, *(value for _, value in self.extra))
        if not self.user or not all(text.isprintable() for text in texts):
            raise invalid("kube-impersonation", "whom to impersonate must be a text without control characters")


class ExecPlugin(msgspec.Struct, frozen=True):
    """A program that gives the credential; ``api_version`` says in which form."""

    command: str
    api_version: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    install_hint: str = ""
    cluster_info: bool = False
    cluster_config: Any = None

    def __repr__(self) -> str:
        """Without arguments and environment, where people put passwords."""
        return f"ExecPlugin({self.command!r})"


class Credential(msgspec.Struct, frozen=True):
    """Whom to trust and what to show to one API server, as it is at one moment: nothing is left to be read."""

    ca: bytes = b""
    certificate: bytes = b""
    key: Secret = Secret("")
    token: Secret | None = None


class Access(msgspec.Struct, frozen=True):
    """One API server and the credential for it."""

    server: str
    """Its URL, without a slash at the end; may hold a path."""
    ca: bytes | Path = b""
    """The only authority trusted, PEM; empty for those of the system."""
    client_certificate: ClientCertificate | None = None
    token: Secret | Path | None = None
    namespace: str = NAMESPACE
    plugin: ExecPlugin | None = None
    tls_server_name: str = ""
    """Which name the server's certificate must have, if not that of the URL."""
    insecure: bool = False
    """Take any certificate of the server; only ever from a person's own kubeconfig."""
    proxy: Proxy | None = None
    impersonation: Impersonation | None = None

    def __post_init__(self) -> None:
        check_server(self.server)
        if self.proxy and URL(self.server).scheme != "https":
            raise invalid("plain-text", "a server behind a proxy needs https://: the proxy would read the credential")
        if self.tls_server_name and not _is_host(self.tls_server_name):
            raise invalid("kube-server", "the tls-server-name of a cluster must be a name that a certificate can have")


def url_of(text: str) -> URL | None:
    """The URL of a host; None if it is none, or if what is read of it is not what it says."""
    try:
        url = URL(text)
        port = url.port
    except ValueError:
        return None
    is_address = url.scheme in ("http", "https") and port and url.host and _is_host(url.host)
    return url if is_address and not _MISREAD.search(text) else None


def _is_host(text: str) -> bool:
    try:
        return bool(text.encode("idna")) and not _MISREAD.search(text)
    except UnicodeError:
        return False


def check_server(server: str) -> None:
    """Refuse what is no address of an API server, and plain text beyond this machine."""
    url = url_of(server)
    # Not shown: an address with a user may hold a password.
    if url is None or url.user or url.password or server.endswith("/"):
        raise invalid(
            "kube-server",
            "the server of a cluster must be like https://host:port or https://host/path: "
            "no user, no query, no slash at the end",
        )
    tls.require_tls(url.host or "", protected=url.scheme == "https")


def in_cluster(environ: Mapping[str, str] = os.environ, account: Path = SERVICE_ACCOUNT) -> Access:
    """The cluster that this program runs in, as the service account of its pod."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    token, ca = account / "token", account / "ca.crt"
    if not host or not port:
        raise _outside("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
    if missing := [str(path) for path in (token, ca) if not path.is_file()]:
        raise _outside(f"there is no {' and no '.join(missing)}")
    address = f"[{host}]" if ":" in host else host
    return Access(f"https://{address}:{port}", ca=ca, token=token, namespace=_namespace(account / "namespace"))


def _namespace(file: Path) -> str:
    try:
        return file.read_text().strip() or NAMESPACE
    except FileNotFoundError:
        return NAMESPACE


def _outside(reason: str) -> GovernorError:
    message = f"this program does not run in a pod with a service account: {reason}; name a kubeconfig instead"
    return GovernorError(Kind.PRECONDITION, "kube-in-cluster", message)
