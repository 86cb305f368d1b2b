"""The kubeconfig file format: parsing, merging and path resolution. Turning one into ``Access`` is ``kubeconfig``."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from governor import yamltext
from governor.errors import GovernorError, Kind, invalid
from governor.values.secret import MASK


class Extension(msgspec.Struct, frozen=True):
    """Extra data for another program."""

    name: str
    extension: Any = None


class _Masked(msgspec.Struct, frozen=True):
    """A struct that prints masked because it may contain a password or a key."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({MASK})"


class Cluster(_Masked, frozen=True, rename="kebab"):
    """An API server."""

    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    extensions: tuple[Extension, ...] = ()


class Variable(_Masked, frozen=True):
    """One environment variable of an exec plugin."""

    name: str
    value: str = ""


class Exec(_Masked, frozen=True, rename="camel"):
    """An exec credential plugin."""

    command: str = ""
    api_version: str = ""
    args: tuple[str, ...] = ()
    env: tuple[Variable, ...] = ()
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""


class User(_Masked, frozen=True, rename="kebab"):
    """A credential."""

    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    username: str = ""
    password: str = ""
    exec: Exec | None = None
    auth_provider: Any = None
    as_user: str = msgspec.field(default="", name="as")
    as_uid: str = ""
    as_groups: tuple[str, ...] = ()
    as_user_extra: dict[str, tuple[str, ...]] = {}


class Context(msgspec.Struct, frozen=True):
    """A pair of cluster and user."""

    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(msgspec.Struct, frozen=True):
    name: str
    cluster: Cluster = Cluster()


class _NamedUser(msgspec.Struct, frozen=True):
    name: str
    user: User = User()


class _NamedContext(msgspec.Struct, frozen=True):
    name: str
    context: Context = Context()


class _File(msgspec.Struct, frozen=True, rename="kebab"):
    clusters: tuple[_NamedCluster, ...] = ()
    users: tuple[_NamedUser, ...] = ()
    contexts: tuple[_NamedContext, ...] = ()
    current_context: str = ""


class Config(msgspec.Struct, frozen=True):
    """One kubeconfig, or several merged; ``source`` names it in errors."""

    source: str
    clusters: Mapping[str, Cluster]
    users: Mapping[str, User]
    contexts: Mapping[str, Context]
    current_context: str

    def merged_with(self, other: "Config") -> "Config":
        """Return both merged; this one takes precedence."""
        return Config(
            f"{self.source}{os.pathsep}{other.source}",
            {**other.clusters, **self.clusters},
            {**other.users, **self.users},
            {**other.contexts, **self.contexts},
            self.current_context or other.current_context,
        )


def parse(data: bytes, source: str) -> Config:
    """Parse a kubeconfig."""
    documents = yamltext.load(data, source)
    if len(documents) != 1 or not isinstance(documents[0].value, dict):
        raise invalid("kubeconfig", f"{source} is not a kubeconfig: it must be one YAML mapping")
    try:
        file = msgspec.convert(_without_nulls(documents[0].value), _File)
    except msgspec.ValidationError as error:
        raise invalid("kubeconfig", f"{source} is not a kubeconfig: {error}") from error
    return Config(
        source,
        {each.name: each.cluster for each in reversed(file.clusters)},
        {each.name: each.user for each in reversed(file.users)},
        {each.name: each.context for each in reversed(file.contexts)},
        file.current_context,
    )


def read_file(path: Path) -> Config:
    """Read a kubeconfig file; relative paths in it are resolved against its directory."""
    try:
        data = path.read_bytes()
    except OSError as error:
        message = f"cannot read the kubeconfig {path}: {error.strerror or error}"
        raise GovernorError(Kind.PRECONDITION, "kubeconfig", message) from error
    config, directory = parse(data, str(path)), path.absolute().parent
    return msgspec.structs.replace(
        config,
        clusters={name: _resolve_cluster(cluster, directory) for name, cluster in config.clusters.items()},
        users={name: _resolve_user(user, directory) for name, user in config.users.items()},
    )


def _without_nulls(value: Any) -> Any:
    """Return the value without null fields, which mean unset."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _resolve_cluster(cluster: Cluster, directory: Path) -> Cluster:
    return msgspec.structs.replace(cluster, certificate_authority=_resolve(cluster.certificate_authority, directory))


def _resolve_user(user: User, directory: Path) -> User:
    plugin = user.exec
    # A bare name is looked up in PATH.
    if plugin and "/" in plugin.command:
        plugin = msgspec.structs.replace(plugin, command=_resolve(plugin.command, directory))
    return msgspec.structs.replace(
        user,
        client_certificate=_resolve(user.client_certificate, directory),
        client_key=_resolve(user.client_key, directory),
        token_file=_resolve(user.token_file, directory),
        exec=plugin,
    )


def _resolve(path: str, directory: Path) -> str:
    return str(directory / path) if path else ""
