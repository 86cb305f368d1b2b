"""Objects of a hub as the caches hold them, for tests of pure decisions."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from governor.kube.objects import ObjectRef
from governor.kube.reflector import Entry, Metadata, Unreadable, View
from governor.kube.reflector.store import Index, Store, WritableStore
from governor.reconciler.kinds.channel import Channel
from governor.reconciler.kinds.cluster import Cluster
from governor.reconciler.kinds.definition import GROUP
from governor.reconciler.kinds.installation import Installation
from governor.reconciler.kinds.module import Module, module_object_name
from governor.reconciler.kinds.module_instance import OWNER_LABEL, ModuleInstance, ModuleInstanceSpec, instance_name
from governor.reconciler.resolution.catalogue import INSTALLATION_INDEXES, INSTANCE_INDEXES, Catalogue

NAMESPACE = "hub"
CREATED = "2026-01-01T00:00:00Z"
V = TypeVar("V", bound=View)


def digest(version: str) -> str:
    return f"sha256:{hashlib.sha256(version.encode()).hexdigest()}"


def read(view: type[V], name: str, spec: Mapping[str, Any], **more: Any) -> V:
    """Return an object as it is read from an API server."""
    labels, status, metadata = more.pop("labels", {}), more.pop("status", {}), more
    own = {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}", "creationTimestamp": CREATED, "generation": 1}
    known = own | {"labels": labels} | metadata
    return msgspec.json.decode(msgspec.json.encode({"metadata": known, "spec": spec, "status": status}), type=view)


def cluster(name: str = "local", *, paused: bool = False, **more: Any) -> Cluster:
    return read(Cluster, name, {"access": {"inCluster": {}}, "paused": paused}, **more)


def module(name: str, version: str = "1.0.0", *, depends_on: Iterable[str] = (), **spec: Any) -> Module:
    chart = {"directory": "/charts", "digest": digest(version)}
    whole = {"module": name, "version": version, "chart": chart, "dependsOn": list(depends_on)} | spec
    return read(Module, module_object_name(name, version), whole)


def channel(name: str = "stable", **modules: str) -> Channel:
    return read(Channel, name, {"modules": modules})


def installation(
    name: str, of: str = "", version: str = "1.0.0", *, deleted: bool = False, **spec: Any
) -> Installation:
    """Return an Installation of the module of its name, unless another is given, on the cluster ``local``."""
    where = {} if "clusterSelector" in spec else {"cluster": "local"}
    which = {} if "channel" in spec else {"version": version}
    more = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {}
    return read(Installation, name, {"module": of or name, **where, **which, **spec}, **more)


def instance(spec: ModuleInstanceSpec, **more: Any) -> ModuleInstance:
    """Return the ModuleInstance with a spec, as the reconciler has created it."""
    labels = {OWNER_LABEL: "x"}
    name = instance_name(spec.module, spec.cluster)
    return read(ModuleInstance, name, msgspec.to_builtins(spec), **({"labels": labels} | more))


def unreadable(name: str, last: V | None = None) -> Unreadable[V]:
    return Unreadable(Metadata(name, NAMESPACE, f"uid-{name}"), "it makes no sense", last)


def store(kind: str, entries: Iterable[Entry[V]], indexes: Mapping[str, Index[V]] | None = None) -> Store[V]:
    filled = WritableStore[V](indexes or {})
    for each in entries:
        ref = ObjectRef(GROUP, kind, NAMESPACE, each.metadata.name)
        if isinstance(each, Unreadable) and each.last is not None:
            filled.put(ref, each.last)
        filled.put(ref, each)
    return filled


def catalogue(
    installations: Iterable[Entry[Installation]] = (),
    modules: Iterable[Entry[Module]] = (),
    channels: Iterable[Entry[Channel]] = (),
    instances: Iterable[Entry[ModuleInstance]] = (),
) -> Catalogue:
    return Catalogue(
        NAMESPACE,
        store("Installation", installations, INSTALLATION_INDEXES),
        store("Channel", channels),
        store("Module", modules),
        store("ModuleInstance", instances, INSTANCE_INDEXES),
    )
