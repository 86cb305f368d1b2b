"""Access to charts by objects of the hub namespace: credentials, authorities, and charts in ConfigMaps."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import msgspec

from governor.errors import GovernorError, Kind, invalid
from governor.kube.client import Client
from governor.reconciler.core_kinds import CONFIG_MAPS, SECRETS
from governor.reconciler.kinds.module import Chart, PackedChart
from governor.values.secret import Secret

_DOCKER_CONFIG = ".dockerconfigjson"


class Access(msgspec.Struct, frozen=True):
    """How a server is accessed; by default anonymously, and verified with the authorities of the system."""

    username: str = ""
    password: Secret = Secret("")
    authorities: str = ""
    """Certificates in PEM that the server is verified with."""
    packed: bytes = b""
    """The chart itself, if it is in the hub namespace."""

    def basic(self) -> dict[str, str]:
        """Return the header with the credentials; none if there are no credentials."""
        if not self.username:
            return {}
        text = f"{self.username}:{self.password.reveal()}"
        return {"Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}


class _Login(msgspec.Struct, frozen=True):
    username: str = ""
    password: str = ""
    auth: str = ""


class _DockerConfig(msgspec.Struct, frozen=True):
    auths: dict[str, _Login]


async def read_access(hub: Client, namespace: str, chart: Chart, host: str) -> Access:
    """Return the access that the Secrets of a chart contain; a missing one is NOT_FOUND, a wrong one INVALID."""
    username, password, authorities = "", "", ""
    if chart.credentials_secret:
        data = await _data(hub, namespace, chart.credentials_secret)
        username, password = credentials_in(data, host, chart.credentials_secret)
    if chart.ca_secret is not None:
        data = await _data(hub, namespace, chart.ca_secret.name)
        if chart.ca_secret.key not in data:
            raise _missing(f"the Secret {chart.ca_secret.name} has no key {chart.ca_secret.key} with certificates")
        authorities = data[chart.ca_secret.key]
    packed = await _packed(hub, namespace, chart.config_map) if chart.config_map is not None else b""
    return Access(username, Secret(password), authorities, packed)


async def _packed(hub: Client, namespace: str, source: PackedChart) -> bytes:
    try:
        found = await hub.get(CONFIG_MAPS, source.name, namespace)
        return base64.b64decode((found.get("binaryData") or {})[source.key])
    except GovernorError as error:
        if error.kind is not Kind.NOT_FOUND:
            raise
        cause: Exception = error
    except KeyError as error:
        cause = error
    message = f"there is no ConfigMap {source.name} with a packed chart under the key {source.key}: create it"
    raise GovernorError(Kind.NOT_FOUND, "chart-unavailable", message) from cause


async def _data(hub: Client, namespace: str, name: str) -> dict[str, str]:
    try:
        found = await hub.get(SECRETS, name, namespace)
    except GovernorError as error:
        if error.kind is not Kind.NOT_FOUND:
            raise
        raise _missing(f"there is no Secret {name}, which the chart of the Module names: create it") from error
    entries: dict[str, Any] = found.get("data") or {}
    return {key: base64.b64decode(value).decode(errors="replace") for key, value in entries.items()}


def credentials_in(data: Mapping[str, str], host: str, name: str) -> tuple[str, str]:
    """Return user name and password for a host in the data of a Secret."""
    if _DOCKER_CONFIG not in data:
        if "username" not in data or "password" not in data:
            raise _missing(f"the Secret {name} has neither username and password nor {_DOCKER_CONFIG}")
        return data["username"], data["password"]
    try:
        logins = msgspec.json.decode(data[_DOCKER_CONFIG], type=_DockerConfig).auths
        login = logins.get(host) or logins.get(f"https://{host}")
        if login is None:
            raise _missing(f"the {_DOCKER_CONFIG} of Secret {name} has no entry for {host}")
        if login.auth:
            username, _, password = base64.b64decode(login.auth).decode().partition(":")
            return username, password
    except (msgspec.DecodeError, binascii.Error, UnicodeDecodeError) as error:
        raise invalid("credentials", f"the {_DOCKER_CONFIG} of Secret {name} cannot be read") from error
    return login.username, login.password


def _missing(message: str) -> GovernorError:
    return GovernorError(Kind.NOT_FOUND, "credentials-missing", message)
