"""A container's configuration in the JSON of the Docker Engine API: read into pods and containers, and edited. Pure.

Only what is read or changed is decoded; all else is kept as the bytes that the client sent. dockerd ignores the case of
field names, merges repeated objects and reads the first JSON value only; so does this module, or a request could hide
from the proxy what dockerd does.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from governor.errors import GovernorError, invalid
from governor.runtimeproxy.docker.names import KubernetesName, annotations, pod_labels
from governor.runtimeproxy.environment import Environment, variable
from governor.runtimeproxy.hooks.changes import Value
from governor.values.secret import Secret
from governor.wire.hooks.workload import Container, Pod, Resources

T = TypeVar("T")

RESOURCE_FIELDS: Final[Mapping[str, str]] = {
    "cpu_period": "CpuPeriod",
    "cpu_quota": "CpuQuota",
    "cpu_shares": "CpuShares",
    "memory_limit_in_bytes": "Memory",
    "oom_score_adj": "OomScoreAdj",
    "memory_swap_limit_in_bytes": "MemorySwap",
    "cpuset_cpus": "CpusetCpus",
    "cpuset_mems": "CpusetMems",
}
"""The resources that the API has."""
_TEXTS: Final = ("cpuset_cpus", "cpuset_mems")
_NANO_CPUS: Final = "NanoCpus"
_PERIOD: Final = 100_000
"""The period in which dockerd enforces NanoCpus, in microseconds."""
_NANO: Final = 1_000_000_000
_IMPLIED_SWAP: Final = 2
_MERGED: Final = (b'"labels"', b'"hostconfig"')
_MAX_REREAD_BYTES: Final = 1024 * 1024
"""Reading a body as dockerd does takes the event loop 20 ms for so many bytes."""
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_READ_ONLY: Final = ":ro"


class Object:
    """A JSON object whose members are decoded when they are read."""

    def __init__(self, raw: bytes | msgspec.Raw = b"{}") -> None:
        self.members = _decoded(raw, dict[str, msgspec.Raw] | None) or {}

    def _keys(self, name: str) -> list[str]:
        """Return the keys that dockerd takes for this name, in order."""
        folded = name.casefold()
        return [key for key in self.members if key.casefold() == folded]

    def get(self, name: str, kind: type[T], default: T) -> T:
        """Return a member; the default if it is absent or null. Raise INVALID if it is of another kind."""
        values = [_decoded(self.members[key], kind | None) for key in self._keys(name)]
        return next((each for each in reversed(values) if each is not None), default)

    def inner(self, name: str) -> "Object":
        """Return a copy of a member that is an object."""
        found = Object()
        for key in self._keys(name):
            found.members |= Object(self.members[key]).members
        return found

    def set(self, name: str, value: Any) -> None:
        """Set a member."""
        *others, key = self._keys(name) or [name]
        for other in others:
            del self.members[other]
        self.members[key] = msgspec.Raw(value.encoded() if isinstance(value, Object) else msgspec.json.encode(value))

    def encoded(self) -> bytes:
        """Return the object as JSON."""
        return msgspec.json.encode(self.members)


def _decoded(raw: bytes | msgspec.Raw, kind: Any) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid("docker-message", f"the body is not a container's configuration: {error}") from error


def readable(body: bytes) -> bytes:
    """Return a body as dockerd reads it, if it reads it differently from this module; raise INVALID if neither can."""
    folded = body.lower()
    is_repeated = any(folded.count(each) > 1 for each in _MERGED)
    try:
        config = Object(body)
        labels_of(config), config.get("Env", list[str], [])
        resources_of(config), resources_of(config.inner("HostConfig"))
    except GovernorError:
        return _first_value(body)
    return _first_value(body) if is_repeated else body


def _first_value(body: bytes) -> bytes:
    if len(body) > _MAX_REREAD_BYTES:
        raise invalid("docker-message", "the body is not a container's configuration, and too long to be read again")
    text = body.decode(errors="replace").lstrip(" \t\r\n")
    try:
        value, _ = json.JSONDecoder(object_pairs_hook=_merged).raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise invalid("docker-message", f"the body is not a container's configuration: {error}") from error
    return _SURROGATE.sub("\ufffd", json.dumps(value, ensure_ascii=False)).encode()


def _merged(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object in which repeated objects are merged, and other repeated members have their last value."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        before = found.get(key)
        found[key] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
    return found


def labels_of(config: Object) -> dict[str, str]:
    """Return the labels of a container; dockerd takes null for an empty one."""
    labels = {key: _decoded(value, str | None) for key, value in config.inner("Labels").members.items()}
    return {key: value or "" for key, value in labels.items()}


def pod_of(name: KubernetesName, config: Object, host: Object) -> Pod:
    """Return the pod of a sandbox."""
    labels = labels_of(config)
    return Pod(
        name.pod,
        pod_labels(labels),
        annotations(labels),
        host.get("CgroupParent", str, ""),
        host.get("Runtime", str, ""),
        resources_of(host),
    )


def container_of(name: KubernetesName, config: Object, host: Object, container_id: str = "") -> Container:
    """Return a container."""
    return Container(
        container_id,
        name.container,
        name.attempt,
        annotations(labels_of(config)),
        resources_of(host),
        host.get("CgroupParent", str, ""),
        {**_binds(host), **_mounts(host)},
        {
            each.PathInContainer: f"{each.PathOnHost}:{each.CgroupPermissions}"
            for each in host.get("Devices", list[_Device], [])
        },
    )


def resources_of(host: Object) -> Resources:
    """Return the resources in a ``HostConfig``, or in an update."""
    values: dict[str, Any] = {}
    for field, name in RESOURCE_FIELDS.items():
        kind: type = str if field in _TEXTS else int
        values[field] = host.get(name, kind, kind())
    nano_cpus = host.get(_NANO_CPUS, int, 0)
    if nano_cpus and not values["cpu_quota"]:
        values["cpu_period"], values["cpu_quota"] = _PERIOD, nano_cpus * _PERIOD // _NANO
    return Resources(**values)


def reported_resources(host: Object) -> Resources:
    """Return the resources that dockerd reports; a swap limit of twice the memory is its own if none was set."""
    found = resources_of(host)
    is_implied = found.memory_swap_limit_in_bytes == _IMPLIED_SWAP * found.memory_limit_in_bytes
    return msgspec.structs.replace(found, memory_swap_limit_in_bytes=0) if is_implied else found


def set_resource(host: Object, field: str, value: Value) -> None:
    """Set a resource; dockerd accepts NanoCpus or a quota, not both."""
    nano_cpus = host.get(_NANO_CPUS, int, 0)
    if field in ("cpu_period", "cpu_quota") and nano_cpus:
        before = resources_of(host)
        host.set(_NANO_CPUS, 0)
        host.set("CpuPeriod", before.cpu_period)
        host.set("CpuQuota", before.cpu_quota)
    host.set(RESOURCE_FIELDS[field], value)


class _Device(msgspec.Struct):
    PathOnHost: str = ""
    PathInContainer: str = ""
    CgroupPermissions: str = ""


def set_device(host: Object, path: str, value: Value) -> None:
    """Set the device with this path in the container; None removes it."""
    devices = host.get("Devices", list[msgspec.Raw], [])
    kept = [each for each in devices if _decoded(each, _Device).PathInContainer != path]
    added = []
    if value is not None:
        on_host, _, permissions = str(value).rpartition(":")
        added.append(_Device(on_host, path, permissions))
    host.set("Devices", [*kept, *added])


class _Mount(msgspec.Struct):
    Type: str = ""
    Source: str = ""
    Target: str = ""
    ReadOnly: bool = False


def _binds(host: Object) -> dict[str, str]:
    found = {}
    for source, target, options in map(_bind, host.get("Binds", list[str], [])):
        found[target] = f"{source}{_READ_ONLY * ('ro' in options)}"
    return found


def _bind(text: str) -> tuple[str, str, list[str]]:
    source, _, rest = text.partition(":")
    target, _, options = rest.partition(":")
    return source, target, options.split(",") if options else []


def _mounts(host: Object) -> dict[str, str]:
    mounts = [each for each in host.get("Mounts", list[_Mount], []) if each.Type == "bind"]
    return {each.Target: f"{each.Source}{_READ_ONLY * each.ReadOnly}" for each in mounts}


def set_mount(host: Object, target: str, value: Value) -> None:
    """Set the bind mount with this path in the container; None removes it."""
    binds, options = [], []
    for each in host.get("Binds", list[str], []):
        _, other, own = _bind(each)
        if other == target:
            options = [option for option in own if option not in ("ro", "rw")]
        else:
            binds.append(each)
    mounts = host.get("Mounts", list[msgspec.Raw], [])
    kept = [each for each in mounts if _decoded(each, _Mount).Target != target]
    if len(kept) < len(mounts):
        host.set("Mounts", kept)
    if value is not None:
        text = str(value)
        if text.endswith(_READ_ONLY):
            options.insert(0, "ro")
        binds.append(":".join([text.removesuffix(_READ_ONLY), target, *([",".join(options)] if options else [])]))
    host.set("Binds", binds)


def environment_of(config: Object) -> Environment:
    """Return the variables of a container. An entry without a value removes a variable of the image; it is not one."""
    pairs = (each.partition("=") for each in config.get("Env", list[str], []))
    return Environment([variable(name, value.encode(errors="replace")) for name, equals, value in pairs if equals])


def set_variables(config: Object, changes: Sequence[tuple[str, Value]]) -> None:
    """Set variables, or remove them by None; order and duplicates of the others stay."""
    entries = config.get("Env", list[str], [])
    for name, value in changes:
        indexes = [index for index, each in enumerate(entries) if each.partition("=")[0] == name]
        if isinstance(value, Secret):
            entry = f"{name}={value.reveal()}"
            if indexes:
                entries[indexes[-1]] = entry
            else:
                entries.append(entry)
        else:
            for index in reversed(indexes):
                del entries[index]
    config.set("Env", entries)
