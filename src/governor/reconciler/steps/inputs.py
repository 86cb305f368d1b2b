"""The first steps: whether the module may be worked on, and everything that its rendering needs to know."""

import base64
from collections.abc import Mapping

import msgspec

from governor import yamltext
from governor.domain.conditions import Actor
from governor.errors import GovernorError, Kind
from governor.kube.client import Client
from governor.kube.objects import Object
from governor.kube.reflector import Unreadable
from governor.reconciler.core_kinds import CONFIG_MAPS, SECRETS
from governor.reconciler.kinds.cluster import Cluster
from governor.reconciler.kinds.definition import Values
from governor.reconciler.kinds.installation import ValuesKey, ValuesSource
from governor.reconciler.kinds.module import Module
from governor.reconciler.kinds.module_instance import OWNER_LABEL, ModuleInstance
from governor.reconciler.kinds.state import DEPLOYED, RESOLVED, Problem
from governor.reconciler.release.record import PREFIX as RECORD_PREFIX
from governor.reconciler.release.reference import KEY_SECRET, values_digest
from governor.reconciler.render.request import Layer
from governor.reconciler.resolution.versions import is_older
from governor.reconciler.states.cluster_state import is_unreachable
from governor.reconciler.steps.step import (
    MODULE_PAUSED,
    Halt,
    Halted,
    Paused,
    Retry,
    Unreachable,
    Work,
    failed,
    unresolved,
)
from governor.values.secret import Secret


async def check_hold(work: Work) -> Work | Halt:
    """Halt if the ModuleInstance is on hold, is not the reconciler's, or its Cluster is missing or paused."""
    instance, cluster = work.instance, work.cluster
    if OWNER_LABEL not in instance.metadata.labels:
        message = "no Installation has created this ModuleInstance: delete it, and create an Installation"
        return unresolved("NotManaged", message, Actor.USER)
    if instance.spec.hold is not None:
        return Halted(instance.spec.hold)
    if cluster is None:
        return unresolved("ClusterMissing", f"there is no Cluster {instance.spec.cluster}", Actor.OPERATOR)
    if isinstance(cluster, Unreadable):
        return unresolved("ClusterUnreadable", f"Cluster {instance.spec.cluster}: {cluster.reason}", Actor.OPERATOR)
    if cluster.spec.paused:
        return Paused()
    return Paused(MODULE_PAUSED) if instance.spec.paused else work


async def check_module(work: Work) -> Work | Halt:
    """Halt unless the Module is still the one that was resolved. Resolving it again finds out what is wrong."""
    spec, module = work.instance.spec, work.module
    is_same = (
        module is not None and not isinstance(module, Unreadable) and module.spec.chart.digest == spec.chart_digest
    )
    if is_same:
        return work
    if work.is_rollback:
        message = f"the Module for {spec.module} {spec.version} is gone or was replaced: create it, or change the spec"
        return unresolved("RollbackImpossible", message, Actor.OPERATOR)
    message = f"the Module for {spec.module} {spec.version} has changed since; it is being resolved again"
    return unresolved("Outdated", message, Actor.NOBODY)


async def check_version(work: Work) -> Work | Halt:
    """Halt if the version is older than the applied one, which is allowed only on request."""
    spec, applied = work.instance.spec, work.status.last_applied
    if applied is None or work.is_rollback or spec.allow_downgrade or not is_older(spec.version, applied.version):
        return work
    message = (
        f"{spec.version} is older than {applied.version}, which is applied: set allowDowngrade of the Installation, "
        "or choose a newer version"
    )
    return Halted(Problem("Downgrade", message, Actor.USER), DEPLOYED, Retry.ON_CHANGE, work)


async def read_values(work: Work) -> Work | Halt:
    """Read the layers of values: defaults of the Module, ``valuesFrom``, and those of the ModuleInstance."""
    try:
        found = await layers_of(work.tools.hub, work.instance, work.known_module, work.kubeconfigs)
    except GovernorError as error:
        return failed(work, "ValuesUnreadable", error, RESOLVED)
    if isinstance(found, Problem):
        return Halted(found)
    digest = values_digest(work.instance.spec, found, work.key)
    return msgspec.structs.replace(work, layers=found, values_digest=digest)


async def check_connection(work: Work) -> Work | Halt:
    """Halt while the cluster cannot be reached: requests that time out would keep workers from other clusters."""
    is_away = isinstance(work.cluster, Cluster) and is_unreachable(work.cluster)
    return Unreachable() if work.target is None or is_away else work


async def layers_of(
    hub: Client, instance: ModuleInstance, module: Module, kubeconfigs: Mapping[str, str]
) -> tuple[Layer, ...] | Problem:
    """Return the layers of values of a module, or why one cannot be read."""
    layers = [_layer(module.spec.values)]
    for source in instance.spec.values_from:
        text = await _read_source(hub, instance, source, kubeconfigs)
        if isinstance(text, Problem):
            return text
        layers.append(Layer(text, is_sensitive=source.secret_ref is not None))
    return (*layers, _layer(instance.spec.values))


def _layer(values: Values) -> Layer:
    return Layer(Secret(msgspec.json.encode(values).decode()))


async def _read_source(
    hub: Client, instance: ModuleInstance, source: ValuesSource, kubeconfigs: Mapping[str, str]
) -> Secret | Problem:
    resource = SECRETS if source.secret_ref is not None else CONFIG_MAPS
    key = source.secret_ref or source.config_map_ref
    assert key is not None  # noqa: S101 - the rule of the kind requires one of them
    if resource is SECRETS and key.name in kubeconfigs:
        message = f"Secret {key.name} has the kubeconfig of Cluster {kubeconfigs[key.name]}: values cannot read it"
        return Problem("SecretForbidden", message, Actor.USER)
    if resource is SECRETS and (key.name == KEY_SECRET or key.name.startswith(RECORD_PREFIX)):
        return Problem("SecretForbidden", f"Secret {key.name} is the reconciler's: values cannot read it", Actor.USER)
    try:
        found = await hub.get(resource, key.name, instance.metadata.namespace)
    except GovernorError as error:
        if error.kind is not Kind.NOT_FOUND:
            raise
        return _missing(f"there is no {resource.kind} {key.name}, which valuesFrom names: create it")
    text = _entry(found, key)
    if text is None:
        return _missing(f"the {resource.kind} {key.name} has no key {key.key}, which valuesFrom names: add it")
    place = f"key {key.key} of {resource.kind} {key.name}"
    return _problem_in(text, place) or Secret(text.decode())


def _entry(found: Object, key: ValuesKey) -> bytes | None:
    """Return one entry of a Secret or ConfigMap."""
    data = found.get("data") or {}
    if key.key not in data:
        return None
    return base64.b64decode(data[key.key]) if found["kind"] == SECRETS.kind else str(data[key.key]).encode()


def _problem_in(text: bytes, place: str) -> Problem | None:
    """Return why a text is not a map of values, or None."""
    try:
        documents = yamltext.load(text, place)
    except GovernorError as error:
        return _invalid(str(error))
    if len(documents) > 1 or (documents and not isinstance(documents[0].value, dict | None)):
        return _invalid(f"{place} must be one map of values")
    return None


def _missing(message: str) -> Problem:
    return Problem("ValuesMissing", message, Actor.USER)


def _invalid(message: str) -> Problem:
    return Problem("ValuesInvalid", f"{message}; correct it", Actor.USER)
