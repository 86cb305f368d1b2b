"""What stands in a kubeconfig, read and merged; what it means is in ``kubeconfig``."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from governor import yamltext
from governor.errors import GovernorError, Kind, invalid
from governor.values.secret import MASK


class Extension(msgspec.Struct, frozen=True):
    """Something for a program that we may or may not know."""

    name: str
    extension: Any = None


class _Private(msgspec.Struct, frozen=True):
    """What may hold a password or a key."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({MASK})"


class Cluster(_Private, frozen=True, rename="kebab"):
    """An API server."""

    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    extensions: tuple[Extension, ...] = ()


class Variable(_Private, frozen=True):
    """One of a program's environment."""

    name: str
    value: str = ""


class Exec(_Private, frozen=True, rename="camel"):
    """A program that gives the credential."""

    command: str = ""
    api_version: str = ""
    args: tuple[str, ...] = ()
    env: tuple[Variable, ...] = ()
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""


class User(_Private, frozen=True, rename="kebab"):
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
    """Which user at which cluster."""

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


class _Text(msgspec.Struct, frozen=True, rename="kebab"):
    clusters: tuple[_NamedCluster, ...] = ()
    users: tuple[_NamedUser, ...] = ()
    contexts: tuple[_NamedContext, ...] = ()
    current_context: str = ""


class Config(msgspec.Struct, frozen=True):
    """One kubeconfig, or several as one; ``source`` names it in errors."""

    source: str
    clusters: Mapping[str, Cluster]
    users: Mapping[str, User]
    contexts: Mapping[str, Context]
    current_context: str

    def over(self, other: "Config") -> "Config":
        """Both as one: what this one says counts, what it does not say the other does."""
        return Config(
            f"{self.source}{os.pathsep}{other.source}",
            {**other.clusters, **self.clusters},
            {**other.users, **self.users},
            {**other.contexts, **self.contexts},
            self.current_context or other.current_context,
        )


def read(data: bytes, source: str) -> Config:
    """A kubeconfig; an error says where it is broken."""
    documents = yamltext.load(data, source)
    if len(documents) != 1 or not isinstance(documents[0].value, dict):
        raise invalid("kubeconfig", f"{source} is not a kubeconfig: it should be one YAML mapping")
    try:
        text = msgspec.convert(_said(documents[0].value), _Text)
    except msgspec.ValidationError as error:
        raise invalid("kubeconfig", f"{source} is not a kubeconfig: {error}") from error
    return Config(
        source,
        {each.name: each.cluster for each in reversed(text.clusters)},
        {each.name: each.user for each in reversed(text.users)},
        {each.name: each.context for each in reversed(text.contexts)},
        text.current_context,
    )


def read_file(path: Path) -> Config:
    """A kubeconfig in a file; paths in it begin at its directory."""
    try:
        data = path.read_bytes()
    except OSError as error:
        message = f"cannot read the kubeconfig {path}: {error.strerror or error}"
        raise GovernorError(Kind.PRECONDITION, "kubeconfig", message) from error
    config, directory = read(data, str(path)), path.absolute().parent
    return msgspec.structs.replace(
        config,
        clusters={name: _placed_cluster(cluster, directory) for name, cluster in config.clusters.items()},
        users={name: _placed_user(user, directory) for name, user in config.users.items()},
    )


def _said(value: Any) -> Any:
    """Without what is null, which stands for nothing said."""
    if isinstance(value, dict):
        return {key: _said(each) for key, each in value.items() if each is not None}
    return [_said(each) for each in value] if isinstance(value, list) else value


def _placed_cluster(cluster: Cluster, directory: Path) -> Cluster:
    return msgspec.structs.replace(cluster, certificate_authority=_placed(cluster.certificate_authority, directory))


def _placed_user(user: User, directory: Path) -> User:
    plugin = user.exec
    # A bare name is looked for where programs are.
    if plugin and "/" in plugin.command:
        plugin = msgspec.structs.replace(plugin, command=_placed(plugin.command, directory))
    return msgspec.structs.replace(
        user,
        client_certificate=_placed(user.client_certificate, directory),
        client_key=_placed(user.client_key, directory),
        token_file=_placed(user.token_file, directory),
        exec=plugin,
    )


def _placed(path: str, directory: Path) -> str:
    return str(directory / path) if path else ""
