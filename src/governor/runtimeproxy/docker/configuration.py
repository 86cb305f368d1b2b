"""A container's configuration in the JSON of the Docker Engine API: read into pods and containers, and edited. Pure.

Only what is read or changed is decoded; all else is kept as the bytes that the client sent. dockerd ignores the case of
field names and reads the first JSON value only; so does this module, or a request could hide from the proxy what
dockerd does. Repeated members, of which dockerd merges some, are refused.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
_NULL: Final = msgspec.Raw(b"null")
REPEATED: Final = "repeated-member"
"""The code of the error for a body in which an object has a member twice."""
_IMPLIED_SWAP: Final = 2
_MAX_REREAD_BYTES: Final = 1024 * 1024
"""Reading a body as dockerd does takes the event loop 20 ms for so many bytes."""
_MAX_SHOWN: Final = 100
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_READ_ONLY: Final = ":ro"


class Object:
    """A JSON object whose members are decoded when they are read."""

    def __init__(self, raw: bytes | msgspec.Raw = b"{}") -> None:
        self.members: dict[str, msgspec.Raw] = _decoded(raw, dict[str, msgspec.Raw] | None) or {}
        self._keys: dict[str, str] | None = None
        """The keys of the members by their folded names, if one was read by its name."""

    def _key(self, name: str) -> str:
        """Return the key that dockerd takes for this name; the name itself if there is none."""
        if self._keys is None:
            self._keys = {_folded(key): key for key in self.members}
        return self._keys.setdefault(_folded(name), name)

    def raw(self, name: str) -> msgspec.Raw:
        """Return a member undecoded; null if it is absent."""
        return self.members.get(self._key(name), _NULL)

    def get(self, name: str, kind: type[T], default: T) -> T:
        """Return a member; the default if it is absent or null. Raise INVALID if it is of another kind."""
        value = _decoded(self.raw(name), kind | None)
        return default if value is None else value

    def inner(self, name: str) -> "Object":
        """Return a copy of a member that is an object."""
        return Object(self.raw(name))

    def set(self, name: str, value: Any) -> None:
        """Set a member."""
        encoded = value.encoded() if isinstance(value, Object) else msgspec.json.encode(value)
        self.members[self._key(name)] = msgspec.Raw(encoded)

    def encoded(self) -> bytes:
        """Return the object as JSON."""
        return msgspec.json.encode(self.members)


def _decoded(raw: bytes | msgspec.Raw, kind: Any, hook: Callable[[type, Any], Any] | None = None) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind, dec_hook=hook)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid("docker-message", f"the body is not a container's configuration: {error}") from error


def _folded(name: str) -> str:
    """Return a name as dockerd compares it: without case, and of letters beyond ASCII only two equal one of ASCII."""
    return name.lower().replace("\N{LATIN SMALL LETTER LONG S}", "s")


def readable(body: bytes) -> bytes:
    """Return a body as dockerd reads it, if it reads it differently from this module.

    Raise INVALID if neither can; with the code ``REPEATED`` if it, or its ``HostConfig``, has a member more than once.
    """
    read = body if _is_readable(body) else _first_value(body)
    for each in (read, Object(read).raw("HostConfig")):
        _refuse_repeated([_folded(name) for name in _names(each)])
    return read


def _is_readable(body: bytes) -> bool:
    try:
        config = Object(body)
        labels_of(config), config.get("Env", list[str], [])
        resources_of(config), resources_of(config.inner("HostConfig"))
    except GovernorError:
        return False
    return True


class _Name(str):
    """The name of a member."""

    __slots__ = ()


_ANY_NAME: Final = _Name()


def _names(raw: bytes | msgspec.Raw) -> list[str]:
    """Return the names of an object's members, with repetitions."""
    names: list[str] = []

    def noted(_: type, name: str) -> _Name:
        names.append(name)
        return _ANY_NAME

    _decoded(raw, dict[_Name, msgspec.Raw] | None, noted)
    return names


def _refuse_repeated(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        [(name, _)] = Counter(names).most_common(1)
        raise invalid(REPEATED, f"the body has the member {name[:_MAX_SHOWN]!r} more than once; send each member once")


def _first_value(body: bytes) -> bytes:
    if len(body) > _MAX_REREAD_BYTES:
        raise invalid("docker-message", "the body is not a container's configuration, and too long to be read again")
    text = body.decode(errors="replace").lstrip(" \t\r\n")
    try:
        value, _ = json.JSONDecoder(object_pairs_hook=_unrepeated).raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise invalid("docker-message", f"the body is not a container's configuration: {error}") from error
    return _SURROGATE.sub("\ufffd", json.dumps(value, ensure_ascii=False)).encode()


def _unrepeated(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    _refuse_repeated([name for name, _ in pairs])
    return dict(pairs)


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
