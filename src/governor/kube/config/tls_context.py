"""TLS contexts of cluster clients: each trusts only its cluster's authority and presents its own certificate.

A context takes 17 to 30 KiB, so only recently used ones are cached. Clients with equal configurations share a context,
and thereby connections.
"""

import os
import ssl
from collections import OrderedDict
from typing import Final

import msgspec

from governor.errors import GovernorError, invalid
from governor.values.secret import Secret

MAX_CONTEXTS: Final = 256


class TlsConfig(msgspec.Struct, frozen=True):
    """Contents of a TLS context. The server name is included because connections are pooled by context."""

    ca: bytes
    certificate: bytes
    key: Secret
    server_name: str
    insecure: bool


class TlsContextCache:
    """LRU cache of the program's TLS contexts."""

    def __init__(self) -> None:
        self._contexts: OrderedDict[TlsConfig, ssl.SSLContext] = OrderedDict()

    def get(self, config: TlsConfig) -> ssl.SSLContext:
        """Return the context for ``config``, created if it is not cached."""
        context = self._contexts.get(config)
        if context is None:
            context = self._contexts[config] = make_context(config)
            if len(self._contexts) > MAX_CONTEXTS:
                self._contexts.popitem(last=False)
        else:
            self._contexts.move_to_end(config)
        return context


def make_context(config: TlsConfig) -> ssl.SSLContext:
    """Return a new context; INVALID names the part that is malformed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if config.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif config.ca:
        _load_authority(context, config.ca)
    else:
        context.load_default_certs()
    if config.certificate:
        _load_pair(context, config.certificate, config.key)
    return context


def _load_authority(context: ssl.SSLContext, ca: bytes) -> None:
    try:
        context.load_verify_locations(cadata=ca.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise invalid("kube-ca", "the certificate authority of the cluster is not a PEM certificate") from error


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: Secret) -> None:
    # OpenSSL reads the pair only from a file; a memfd never reaches the disk.
    file = os.memfd_create("client-certificate")
    try:
        with os.fdopen(os.dup(file), "wb") as pem:
            pem.write(certificate + b"\n" + key.reveal().encode())
        # With an empty password an encrypted key is an error; without one OpenSSL would prompt on the terminal.
        context.load_cert_chain(f"/proc/self/fd/{file}", password="")
    except ssl.SSLError as error:
        raise _pair_error(error) from error
    finally:
        os.close(file)


def _pair_error(error: ssl.SSLError) -> GovernorError:
    if error.reason == "KEY_VALUES_MISMATCH":
        return invalid("kube-client-certificate", "the client key does not belong to the client certificate")
    message = "the client certificate and key are not a PEM certificate and its unencrypted PEM key"
    return invalid("kube-client-certificate", message)
