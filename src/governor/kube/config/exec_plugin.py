"""Runs exec credential plugins (client.authentication.k8s.io): input, process, and the parsed ExecCredential.

Only the user's own kubeconfig may name a plugin. A plugin has no terminal, so interactive ones are rejected.
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
from governor.kube.errors import DECODE_ERRORS
from governor.process.child import child
from governor.values.secret import Secret

GROUP: Final = "client.authentication.k8s.io"
VERSIONS: Final = (f"{GROUP}/v1", f"{GROUP}/v1beta1")
TIMEOUT_S: Final = 60.0
_GRACE_S: Final = 2.0
_MAX_STDOUT_BYTES: Final = 1024 * 1024
_MAX_STDERR_LINES: Final = 5


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    expiration_timestamp: datetime.datetime | None = None
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""


class _ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _Status | None = None


async def run(plugin: ExecPlugin, access: Access, ca: bytes) -> tuple[Credential, datetime.datetime | None]:
    """Run the plugin once and return its credential, and when that expires if known."""
    if shutil.which(plugin.command) is None:
        hint = f"; {plugin.install_hint.strip()}" if plugin.install_hint.strip() else ""
        raise _failed(plugin, f"is not an executable program{hint}", Kind.PRECONDITION)
    output = await _run(plugin, _environment(plugin, access, ca))
    return parse_output(plugin, ca, output)


def parse_output(plugin: ExecPlugin, ca: bytes, output: bytes) -> tuple[Credential, datetime.datetime | None]:
    """Return the credential in the plugin's output, and when it expires; an error names a field, never a value."""
    try:
        result = msgspec.json.decode(output, type=_ExecCredential)
    except DECODE_ERRORS as error:
        raise _failed(plugin, f"did not write an ExecCredential to its standard output: {error}") from error
    if result.kind != "ExecCredential" or result.api_version != plugin.api_version:
        raise _failed(plugin, f"did not write an ExecCredential of {plugin.api_version}, the version in the kubeconfig")
    status = result.status or _Status()
    certificate, key = status.client_certificate_data, status.client_key_data
    if bool(certificate) != bool(key):
        raise _failed(plugin, "returned only one of clientCertificateData and clientKeyData")
    if not status.token and not certificate:
        raise _failed(plugin, "returned neither a token nor a client certificate")
    credential = Credential(ca, certificate.encode(), Secret(key), Secret(status.token) if status.token else None)
    return credential, _as_utc(status.expiration_timestamp)


async def _run(plugin: ExecPlugin, environment: Mapping[str, str]) -> bytes:
    """Return the plugin's standard output, kept in memory only because it contains secrets."""
    file = os.memfd_create("exec-credential")
    try:
        # A child has one pipe for both outputs; the shell redirects stdout, so that the tail contains only stderr.
        argv = ["/bin/sh", "-c", 'exec "$@" >"$0"', f"/proc/{os.getpid()}/fd/{file}", plugin.command, *plugin.args]
        process = await child.start(argv, env=environment)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                ended = await process.wait()
        except TimeoutError as error:
            raise _failed(plugin, f"did not exit within {TIMEOUT_S:g} s", Kind.DEADLINE) from error
        finally:
            await process.stop(_GRACE_S)
        if ended.code != 0:
            reason = "\n  ".join([ended.summary, *ended.tail[-_MAX_STDERR_LINES:]])
            raise _failed(plugin, reason, Kind.UNAUTHENTICATED)
        return os.pread(file, _MAX_STDOUT_BYTES, 0)
    finally:
        os.close(file)


def _environment(plugin: ExecPlugin, access: Access, ca: bytes) -> dict[str, str]:
    spec: dict[str, Any] = {"interactive": False}
    if plugin.cluster_info:
        spec["cluster"] = _cluster(plugin, access, ca)
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    return {**os.environ, **dict(plugin.env), "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}


def _cluster(plugin: ExecPlugin, access: Access, ca: bytes) -> dict[str, Any]:
    fields = {
        "server": access.server,
        "tls-server-name": access.tls_server_name,
        "insecure-skip-tls-verify": access.insecure,
        "certificate-authority-data": base64.b64encode(ca).decode(),
        "proxy-url": access.proxy.url if access.proxy else "",
        "config": plugin.cluster_config,
    }
    return {name: value for name, value in fields.items() if value}


def _as_utc(moment: datetime.datetime | None) -> datetime.datetime | None:
    return moment.replace(tzinfo=datetime.UTC) if moment and moment.tzinfo is None else moment


def _failed(plugin: ExecPlugin, problem: str, kind: Kind = Kind.UNAUTHENTICATED) -> GovernorError:
    return GovernorError(kind, "kube-exec-plugin", f"the credential plugin {plugin.command} {problem}")
