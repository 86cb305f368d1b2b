"""Turns a kubeconfig into ``Access``: the user's own, or one from a Secret, which must not name files or programs.

Otherwise anyone who may write the Secret could read files and run programs as this process. Unknown fields are ignored;
known fields that are not supported are errors. Errors quote no values except names and paths.
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
    DEFAULT_NAMESPACE,
    POD_VARIABLE,
    Access,
    ClientCertificate,
    ExecPlugin,
    Impersonation,
    check_server,
    in_cluster,
)
from governor.kube.config.kubeconfig_format import Cluster, Config, Context, Exec, User, parse, read_file
from governor.process.proxy import Proxy, read_proxy
from governor.values.secret import Secret

_UNTRUSTED_SOURCE: Final = "the kubeconfig in the Secret"
_EXTENSION: Final = f"{exec_plugin.GROUP}/exec"


def load(file: Path | None = None, context: str = "", environ: Mapping[str, str] = os.environ) -> Access:
    """Load the user's kubeconfig: ``file``, the files in KUBECONFIG, or ``~/.kube/config``.

    It is trusted: it may name files to read and programs to run.
    """
    return _access(_select(_user_config(file, environ), context))


def load_or_in_cluster(file: Path | None = None, context: str = "", environ: Mapping[str, str] = os.environ) -> Access:
    """Return the access of the pod that this program runs in; of the user outside of a cluster, or if one is named."""
    is_named = file is not None or bool(context)
    return load(file, context, environ) if is_named or POD_VARIABLE not in environ else in_cluster(environ)


def from_secret(data: bytes, context: str = "", source: str = _UNTRUSTED_SOURCE) -> Access:
    """Load an untrusted kubeconfig; files, programs and insecure connections are DENIED."""
    selected = _select(parse(data, source), context)
    _reject_external_references(selected)
    return _access(selected)


class _Selected(msgspec.Struct, frozen=True):
    """One context of a kubeconfig with its cluster and user."""

    source: str
    context: Context
    cluster: Cluster
    user: User

    def error(self, where: str, reason: str, kind: Kind = Kind.INVALID) -> GovernorError:
        """Return an error at a field of the cluster or the user."""
        section, _, field = where.partition(".")
        name = self.context.cluster if section == "cluster" else self.context.user
        return _error(self.source, f"{section}s[{name}].{section}.{field}", reason, kind)


def _error(source: str, path: str, reason: str, kind: Kind = Kind.INVALID) -> GovernorError:
    return GovernorError(kind, "kubeconfig", f"{source} cannot be used", [Detail(reason, path=path)])


def _user_config(file: Path | None, environ: Mapping[str, str]) -> Config:
    if file is not None:
        return read_file(file)
    home = Path(environ.get("HOME") or "~").expanduser() / ".kube/config"
    listed = [Path(each) for each in environ.get("KUBECONFIG", "").split(os.pathsep) if each] or [home]
    present = [path for path in dict.fromkeys(listed) if path.exists()]
    if not present:
        message = f"no kubeconfig found at {' or '.join(map(str, listed))}; set KUBECONFIG or specify the file"
        raise GovernorError(Kind.PRECONDITION, "kubeconfig", message)
    return functools.reduce(Config.merged_with, map(read_file, present))


def _select(config: Config, context_name: str) -> _Selected:
    name = context_name or config.current_context
    known = ", ".join(sorted(config.contexts)) or "none"
    if not name:
        raise _error(config.source, "current-context", f"it is not set; specify a context, one of: {known}")
    context = config.contexts.get(name)
    if context is None:
        raise _error(config.source, "contexts", f"there is no context {name!r}; known contexts: {known}")
    path = f"contexts[{name}].context"
    if context.cluster not in config.clusters:
        raise _error(config.source, f"{path}.cluster", f"there is no cluster {context.cluster!r}")
    if context.user not in config.users:
        raise _error(config.source, f"{path}.user", f"there is no user {context.user!r}")
    return _Selected(config.source, context, config.clusters[context.cluster], config.users[context.user])


def _reject_external_references(selected: _Selected) -> None:
    cluster, user = selected.cluster, selected.user
    rejected = {
        "cluster.server": (cluster.server.lower().startswith("http:"), "use an address with https://"),
        "cluster.certificate-authority": (cluster.certificate_authority, "put the PEM into the -data field"),
        "cluster.insecure-skip-tls-verify": (cluster.insecure_skip_tls_verify, "use certificate-authority-data"),
        "user.client-certificate": (user.client_certificate, "put the PEM into the -data field"),
        "user.client-key": (user.client_key, "put the PEM into the -data field"),
        "user.tokenFile": (user.token_file, "put the token into the token field"),
        "user.exec": (user.exec, "use a token or a client certificate"),
        "user.auth-provider": (user.auth_provider, "use a token or a client certificate"),
    }
    for where, (value, advice) in rejected.items():
        if value:
            reason = f"not allowed in a kubeconfig from a Secret (no files, programs or insecure connections): {advice}"
            raise selected.error(where, reason, Kind.DENIED)


def _access(selected: _Selected) -> Access:
    cluster = selected.cluster
    server = cluster.server.rstrip("/")
    _check_server(selected, server)
    return Access(
        server,
        ca=_authority(selected),
        client_certificate=_certificate(selected),
        token=_token(selected),
        namespace=selected.context.namespace or DEFAULT_NAMESPACE,
        plugin=_plugin(selected),
        tls_server_name=cluster.tls_server_name,
        insecure=cluster.insecure_skip_tls_verify,
        proxy=_proxy(selected),
        impersonation=_impersonation(selected),
    )


def _check_server(selected: _Selected, server: str) -> None:
    try:
        check_server(server)
    except GovernorError as error:
        raise selected.error("cluster.server", error.message) from error


def _authority(selected: _Selected) -> bytes | Path:
    cluster = selected.cluster
    if cluster.insecure_skip_tls_verify and (cluster.certificate_authority or cluster.certificate_authority_data):
        raise selected.error(
            "cluster.insecure-skip-tls-verify", "a certificate authority is set too; remove one of them"
        )
    if cluster.certificate_authority_data:
        authority = _decode_base64(selected, "cluster.certificate-authority-data", cluster.certificate_authority_data)
        if not authority:
            raise selected.error("cluster.certificate-authority-data", "it is blank; remove it or set a certificate")
        return authority
    return Path(cluster.certificate_authority) if cluster.certificate_authority else b""


def _certificate(selected: _Selected) -> ClientCertificate | None:
    user = selected.user
    has_certificate = bool(user.client_certificate or user.client_certificate_data)
    has_key = bool(user.client_key or user.client_key_data)
    if has_certificate != has_key:
        missing = "client-key" if has_certificate else "client-certificate"
        raise selected.error(f"user.{missing}", "it is missing; a client certificate needs its key and vice versa")
    if not has_certificate:
        return None
    certificate = _decode_base64(selected, "user.client-certificate-data", user.client_certificate_data)
    key = _decode_base64(selected, "user.client-key-data", user.client_key_data).decode("ascii", "replace")
    return ClientCertificate(
        certificate or Path(user.client_certificate), Secret(key) if key else Path(user.client_key)
    )


def _token(selected: _Selected) -> Secret | Path | None:
    user = selected.user
    if user.username or user.password:
        reason = "Kubernetes no longer supports basic authentication; use a token or a client certificate"
        raise selected.error("user.username", reason)
    if user.token_file:
        return Path(user.token_file)
    return Secret(user.token) if user.token else None


def _plugin(selected: _Selected) -> ExecPlugin | None:
    user, plugin = selected.user, selected.user.exec
    if user.auth_provider:
        reason = "Kubernetes no longer supports auth providers; use the provider's exec plugin"
        raise selected.error("user.auth-provider", reason)
    if plugin is None:
        return None
    _check_plugin(selected, plugin)
    extensions = {each.name: each.extension for each in selected.cluster.extensions}
    return ExecPlugin(
        plugin.command,
        plugin.api_version,
        plugin.args,
        tuple((each.name, each.value) for each in plugin.env),
        plugin.install_hint,
        plugin.provide_cluster_info,
        extensions.get(_EXTENSION),
    )


def _check_plugin(selected: _Selected, plugin: Exec) -> None:
    user = selected.user
    if not plugin.command:
        raise selected.error("user.exec.command", "it is missing")
    if plugin.api_version not in exec_plugin.VERSIONS:
        raise selected.error("user.exec.apiVersion", f"it must be one of {', '.join(exec_plugin.VERSIONS)}")
    if plugin.interactive_mode not in ("", "Never", "IfAvailable"):
        reason = "the plugin has no terminal; use Never or IfAvailable"
        raise selected.error("user.exec.interactiveMode", reason)
    if user.token or user.token_file or user.client_certificate or user.client_certificate_data:
        raise selected.error("user.exec", "another credential is set beside the plugin; remove one of them")


def _proxy(selected: _Selected) -> Proxy | None:
    if not selected.cluster.proxy_url:
        return None
    if selected.cluster.proxy_url.startswith("socks5:"):
        raise selected.error("cluster.proxy-url", "SOCKS is not supported; use an HTTP proxy", Kind.UNIMPLEMENTED)
    proxy = read_proxy(selected.cluster.proxy_url)
    if proxy is None:
        raise selected.error("cluster.proxy-url", "it must look like http://host:port or https://host:port")
    return proxy


def _impersonation(selected: _Selected) -> Impersonation | None:
    user = selected.user
    if not user.as_user:
        if user.as_groups or user.as_uid or user.as_user_extra:
            raise selected.error("user.as", "it is missing; groups, uid and extra need a user to impersonate")
        return None
    extra = tuple((name, value) for name, values in user.as_user_extra.items() for value in values)
    return Impersonation(user.as_user, user.as_uid, user.as_groups, extra)


def _decode_base64(selected: _Selected, where: str, data: str) -> bytes:
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except binascii.Error as error:
        raise selected.error(where, "it is not base64") from error
