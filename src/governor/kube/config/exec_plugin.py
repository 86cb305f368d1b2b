"""Credentials from a program (client.authentication.k8s.io): what it is told, how it is run, what its answer means.

Only a person's own kubeconfig may name one. It has no terminal: a program that must ask somebody is refused.
"""

import asyncio
import base64
import datetime
import os
import shutil
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.config.access import Access, Credential, ExecPlugin
from governor.process.child import child
from governor.values.secret import Secret

GROUP: Final = "client.authentication.k8s.io"
VERSIONS: Final = (f"{GROUP}/v1", f"{GROUP}/v1beta1")
TIMEOUT_S: Final = 60.0
_GRACE_S: Final = 2.0
_MOST_BYTES: Final = 1024 * 1024
_SHOWN_LINES: Final = 5


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    expiration_timestamp: datetime.datetime | None = None
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""


class _ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _Status | None = None


async def ask(plugin: ExecPlugin, access: Access, ca: bytes) -> tuple[Credential, datetime.datetime | None]:
    """Run the program once: the credential that it gives, and until when it is good if it says so."""
    if shutil.which(plugin.command) is None:
        hint = f"; {plugin.install_hint.strip()}" if plugin.install_hint.strip() else ""
        raise _failed(plugin, f"is not an executable program here{hint}", Kind.PRECONDITION)
    output = await _run(plugin, _environment(plugin, access, ca))
    return read_answer(plugin, ca, output)


def read_answer(plugin: ExecPlugin, ca: bytes, output: bytes) -> tuple[Credential, datetime.datetime | None]:
    """What the program wrote; an error names a field, never a value."""
    try:
        answer = msgspec.json.decode(output, type=_ExecCredential)
    except msgspec.MsgspecError as error:
        raise _failed(plugin, f"wrote no ExecCredential to its standard output: {error}") from error
    if answer.kind != "ExecCredential" or answer.api_version != plugin.api_version:
        raise _failed(plugin, f"wrote no ExecCredential of {plugin.api_version}; the kubeconfig names that version")
    status = answer.status or _Status()
    certificate, key = status.client_certificate_data, status.client_key_data
    if bool(certificate) != bool(key):
        raise _failed(plugin, "gave only one of clientCertificateData and clientKeyData")
    if not status.token and not certificate:
        raise _failed(plugin, "gave neither a token nor a client certificate")
    credential = Credential(ca, certificate.encode(), Secret(key), Secret(status.token) if status.token else None)
    return credential, _aware(status.expiration_timestamp)


async def _run(plugin: ExecPlugin, environment: Mapping[str, str]) -> bytes:
    """Its standard output, kept in memory only: it holds secrets."""
    file = os.memfd_create("exec-credential")
    try:
        # The shell parts the outputs, which a child has in one: messages for people stay in the child's tail.
        argv = ["/bin/sh", "-c", 'exec "$@" >"$0"', f"/proc/{os.getpid()}/fd/{file}", plugin.command, *plugin.args]
        process = await child.start(argv, env=environment)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                ended = await process.wait()
        except TimeoutError as error:
            raise _failed(plugin, f"did not end within {TIMEOUT_S:g} s", Kind.DEADLINE) from error
        finally:
            await process.stop(_GRACE_S)
        if ended.code != 0:
            said = "\n  ".join([ended.how, *ended.tail[-_SHOWN_LINES:]])
            raise _failed(plugin, said, Kind.UNAUTHENTICATED)
        return os.pread(file, _MOST_BYTES, 0)
    finally:
        os.close(file)


def _environment(plugin: ExecPlugin, access: Access, ca: bytes) -> dict[str, str]:
    spec: dict[str, Any] = {"interactive": False}
    if plugin.cluster_info:
        spec["cluster"] = _cluster(plugin, access, ca)
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    return {**os.environ, **dict(plugin.env), "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}


def _cluster(plugin: ExecPlugin, access: Access, ca: bytes) -> dict[str, Any]:
    known = {
        "server": access.server,
        "tls-server-name": access.tls_server_name,
        "insecure-skip-tls-verify": access.insecure,
        "certificate-authority-data": base64.b64encode(ca).decode(),
        "proxy-url": access.proxy.url if access.proxy else "",
        "config": plugin.cluster_config,
    }
    return {name: value for name, value in known.items() if value}


def _aware(moment: datetime.datetime | None) -> datetime.datetime | None:
    return moment.replace(tzinfo=datetime.UTC) if moment and moment.tzinfo is None else moment


def _failed(plugin: ExecPlugin, what: str, kind: Kind = Kind.UNAUTHENTICATED) -> GovernorError:
    return GovernorError(kind, "kube-exec-plugin", f"the credential plug-in {plugin.command} {what}")
