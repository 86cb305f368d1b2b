"""Kubeconfigs to ``Access``: a person's own, which may name files and programs, and those from Secrets, which may not.

Whoever may write a Secret would otherwise read our files and run programs as us. Fields that nobody knows are left
aside; those that are known and not supported are errors. No error repeats a value, except names and paths.
"""

import base64
import binascii
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from governor.errors import Detail, GovernorError, Kind
from governor.kube.config import exec_plugin
from governor.kube.config.access import (
    NAMESPACE,
    Access,
    ClientCertificate,
    ExecPlugin,
    Impersonation,
    Proxy,
    check_server,
    url_of,
)
from governor.kube.config.kubeconfig_file import Cluster, Config, Context, Exec, User, read, read_file
from governor.values.secret import Secret

_SOURCE: Final = "the kubeconfig in the Secret"
_EXTENSION: Final = f"{exec_plugin.GROUP}/exec"


def load(file: Path | None = None, context: str = "", environ: Mapping[str, str] = os.environ) -> Access:
    """A person's own: ``file``, or what KUBECONFIG lists, or ``~/.kube/config``; its current context or another.

    It may do everything that the person may do here.
    """
    return _access(_choose(_own_config(file, environ), context))


def from_secret(data: bytes, context: str = "", source: str = _SOURCE) -> Access:
    """One that somebody else wrote: what would lead out of it is refused."""
    chosen = _choose(read(data, source), context)
    _refuse_leading_out(chosen)
    return _access(chosen)


class _Chosen(msgspec.Struct, frozen=True):
    """What one context of a kubeconfig leads to."""

    source: str
    context: Context
    cluster: Cluster
    user: User

    def wrong(self, where: str, reason: str, kind: Kind = Kind.INVALID) -> GovernorError:
        """An error at a field of the cluster or of the user."""
        section, _, field = where.partition(".")
        name = self.context.cluster if section == "cluster" else self.context.user
        return _wrong(self.source, f"{section}s[{name}].{section}.{field}", reason, kind)


def _wrong(source: str, path: str, reason: str, kind: Kind = Kind.INVALID) -> GovernorError:
    return GovernorError(kind, "kubeconfig", f"{source} cannot be used", [Detail(reason, path=path)])


def _own_config(file: Path | None, environ: Mapping[str, str]) -> Config:
    if file is not None:
        return read_file(file)
    home = Path(environ.get("HOME") or "~").expanduser() / ".kube/config"
    listed = [Path(each) for each in environ.get("KUBECONFIG", "").split(os.pathsep) if each] or [home]
    present = [path for path in dict.fromkeys(listed) if path.exists()]
    if not present:
        message = f"there is no kubeconfig at {' nor at '.join(map(str, listed))}: set KUBECONFIG, or name the file"
        raise GovernorError(Kind.PRECONDITION, "kubeconfig", message)
    return functools.reduce(Config.over, map(read_file, present))


def _choose(config: Config, wanted: str) -> _Chosen:
    name = wanted or config.current_context
    known = ", ".join(sorted(config.contexts)) or "none"
    if not name:
        raise _wrong(config.source, "current-context", f"it is not set: name a context; there are: {known}")
    context = config.contexts.get(name)
    if context is None:
        raise _wrong(config.source, "contexts", f"there is no context {name!r}; there are: {known}")
    path = f"contexts[{name}].context"
    if context.cluster not in config.clusters:
        raise _wrong(config.source, f"{path}.cluster", f"there is no cluster {context.cluster!r}")
    if context.user not in config.users:
        raise _wrong(config.source, f"{path}.user", f"there is no user {context.user!r}")
    return _Chosen(config.source, context, config.clusters[context.cluster], config.users[context.user])


def _refuse_leading_out(chosen: _Chosen) -> None:
    cluster, user = chosen.cluster, chosen.user
    refused = {
        "cluster.server": (cluster.server.lower().startswith("http:"), "give an address that begins with https://"),
        "cluster.certificate-authority": (cluster.certificate_authority, "put the PEM into the field with -data"),
        "cluster.insecure-skip-tls-verify": (cluster.insecure_skip_tls_verify, "give certificate-authority-data"),
        "user.client-certificate": (user.client_certificate, "put the PEM into the field with -data"),
        "user.client-key": (user.client_key, "put the PEM into the field with -data"),
        "user.tokenFile": (user.token_file, "put the token itself into the field token"),
        "user.exec": (user.exec, "give a token or a client certificate"),
        "user.auth-provider": (user.auth_provider, "give a token or a client certificate"),
    }
    for where, (value, advice) in refused.items():
        if value:
            reason = f"not in a kubeconfig from a Secret, which may name no file or program and must be safe: {advice}"
            raise chosen.wrong(where, reason, Kind.DENIED)


def _access(chosen: _Chosen) -> Access:
    cluster = chosen.cluster
    server = cluster.server.rstrip("/")
    _check_server(chosen, server)
    return Access(
        server,
        ca=_authority(chosen),
        client_certificate=_certificate(chosen),
        token=_token(chosen),
        namespace=chosen.context.namespace or NAMESPACE,
        plugin=_plugin(chosen),
        tls_server_name=cluster.tls_server_name,
        insecure=cluster.insecure_skip_tls_verify,
        proxy=_proxy(chosen),
        impersonation=_impersonation(chosen),
    )


def _check_server(chosen: _Chosen, server: str) -> None:
    try:
        check_server(server)
    except GovernorError as error:
        raise chosen.wrong("cluster.server", error.message) from error


def _authority(chosen: _Chosen) -> bytes | Path:
    cluster = chosen.cluster
    if cluster.insecure_skip_tls_verify and (cluster.certificate_authority or cluster.certificate_authority_data):
        raise chosen.wrong("cluster.insecure-skip-tls-verify", "there is a certificate authority too: remove one")
    if cluster.certificate_authority_data:
        authority = _decoded(chosen, "cluster.certificate-authority-data", cluster.certificate_authority_data)
        if not authority:
            raise chosen.wrong("cluster.certificate-authority-data", "it is blank: remove it, or give a certificate")
        return authority
    return Path(cluster.certificate_authority) if cluster.certificate_authority else b""


def _certificate(chosen: _Chosen) -> ClientCertificate | None:
    user = chosen.user
    has_certificate = bool(user.client_certificate or user.client_certificate_data)
    has_key = bool(user.client_key or user.client_key_data)
    if has_certificate != has_key:
        missing = "client-key" if has_certificate else "client-certificate"
        raise chosen.wrong(f"user.{missing}", "a client certificate and its key go together, and this one is missing")
    if not has_certificate:
        return None
    certificate = _decoded(chosen, "user.client-certificate-data", user.client_certificate_data)
    key = _decoded(chosen, "user.client-key-data", user.client_key_data).decode("ascii", "replace")
    return ClientCertificate(
        certificate or Path(user.client_certificate), Secret(key) if key else Path(user.client_key)
    )


def _token(chosen: _Chosen) -> Secret | Path | None:
    user = chosen.user
    if user.username or user.password:
        reason = "Kubernetes has no basic authentication any more: use a token or a client certificate"
        raise chosen.wrong("user.username", reason)
    if user.token_file:
        return Path(user.token_file)
    return Secret(user.token) if user.token else None


def _plugin(chosen: _Chosen) -> ExecPlugin | None:
    user, plugin = chosen.user, chosen.user.exec
    if user.auth_provider:
        reason = "Kubernetes has no authentication providers any more: use the provider's exec plug-in"
        raise chosen.wrong("user.auth-provider", reason)
    if plugin is None:
        return None
    _check_plugin(chosen, plugin)
    extensions = {each.name: each.extension for each in chosen.cluster.extensions}
    return ExecPlugin(
        plugin.command,
        plugin.api_version,
        plugin.args,
        tuple((each.name, each.value) for each in plugin.env),
        plugin.install_hint,
        plugin.provide_cluster_info,
        extensions.get(_EXTENSION),
    )


def _check_plugin(chosen: _Chosen, plugin: Exec) -> None:
    user = chosen.user
    if not plugin.command:
        raise chosen.wrong("user.exec.command", "it is missing")
    if plugin.api_version not in exec_plugin.VERSIONS:
        raise chosen.wrong("user.exec.apiVersion", f"it must be one of {', '.join(exec_plugin.VERSIONS)}")
    if plugin.interactive_mode not in ("", "Never", "IfAvailable"):
        reason = "the plug-in has no terminal to ask on: only Never and IfAvailable work"
        raise chosen.wrong("user.exec.interactiveMode", reason)
    if user.token or user.token_file or user.client_certificate or user.client_certificate_data:
        raise chosen.wrong("user.exec", "there is another credential beside the plug-in: remove one of them")


def _proxy(chosen: _Chosen) -> Proxy | None:
    if not chosen.cluster.proxy_url:
        return None
    if chosen.cluster.proxy_url.startswith("socks5:"):
        raise chosen.wrong("cluster.proxy-url", "SOCKS is not supported: use an HTTP proxy", Kind.UNIMPLEMENTED)
    url = url_of(chosen.cluster.proxy_url)
    if url is None:
        raise chosen.wrong("cluster.proxy-url", "it must be like http://host:port or https://host:port")
    login = base64.b64encode(f"{url.user or ''}:{url.password or ''}".encode()).decode()
    return Proxy(str(url.origin()), Secret(f"Basic {login}") if url.user else None)


def _impersonation(chosen: _Chosen) -> Impersonation | None:
    user = chosen.user
    if not user.as_user:
        if user.as_groups or user.as_uid or user.as_user_extra:
            raise chosen.wrong("user.as", "it is missing: groups, uid and extra are those of a user to impersonate")
        return None
    extra = tuple((name, value) for name, values in user.as_user_extra.items() for value in values)
    return Impersonation(user.as_user, user.as_uid, user.as_groups, extra)


def _decoded(chosen: _Chosen, where: str, data: str) -> bytes:
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except binascii.Error as error:
        raise chosen.wrong(where, "it is not base64") from error
