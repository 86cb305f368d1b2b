"""TLS contexts of cluster clients: each trusts its own authority only and shows its own certificate.

A context is 17 to 30 KiB, so only those used lately are kept. Equal ones are one, and with it their connections are.
"""

import os
import ssl
from collections import OrderedDict
from typing import Final

import msgspec

from governor.errors import GovernorError, invalid
from governor.values.secret import Secret

KEPT: Final = 256


class Trust(msgspec.Struct, frozen=True):
    """Whom to trust and what to show, all read; the name is part of it because connections are shared by it."""

    ca: bytes
    certificate: bytes
    key: Secret
    server_name: str
    insecure: bool


class Contexts:
    """The contexts of a program; the one unused longest goes when there are too many."""

    def __init__(self) -> None:
        self._contexts: OrderedDict[Trust, ssl.SSLContext] = OrderedDict()

    def get(self, trust: Trust) -> ssl.SSLContext:
        """The context for ``trust``, made when it is not there."""
        context = self._contexts.get(trust)
        if context is None:
            context = self._contexts[trust] = make_context(trust)
            if len(self._contexts) > KEPT:
                self._contexts.popitem(last=False)
        else:
            self._contexts.move_to_end(trust)
        return context


def make_context(trust: Trust) -> ssl.SSLContext:
    """A new context; INVALID says which part is not what it should be."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if trust.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif trust.ca:
        _load_authority(context, trust.ca)
    else:
        context.load_default_certs()
    if trust.certificate:
        _load_pair(context, trust.certificate, trust.key)
    return context


def _load_authority(context: ssl.SSLContext, ca: bytes) -> None:
    try:
        context.load_verify_locations(cadata=ca.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise invalid("kube-ca", "the certificate authority of the cluster is not a PEM certificate") from error


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: Secret) -> None:
    # OpenSSL reads the pair from a file only; this one is in memory and gone with its descriptor.
    file = os.memfd_create("client-certificate")
    try:
        with os.fdopen(os.dup(file), "wb") as writing:
            writing.write(certificate + b"\n" + key.reveal().encode())
        # An empty password makes an encrypted key an error; without one OpenSSL would ask on the terminal.
        context.load_cert_chain(f"/proc/self/fd/{file}", password="")
    except ssl.SSLError as error:
        raise _bad_pair(error) from error
    finally:
        os.close(file)


def _bad_pair(error: ssl.SSLError) -> GovernorError:
    if error.reason == "KEY_VALUES_MISMATCH":
        return invalid("kube-client-certificate", "the client key is not the key to the client certificate")
    message = "the client certificate and key are not a PEM certificate and its unencrypted PEM key"
    return invalid("kube-client-certificate", message)
