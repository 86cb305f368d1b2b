"""The first steps: whether the module may be worked on, and everything that its rendering needs to know."""

import base64

import msgspec

from governor import yamltext
from governor.domain.conditions import Actor
from governor.errors import GovernorError, Kind
from governor.kube.objects import Object
from governor.kube.reflector import Unreadable
from governor.reconciler.core_kinds import CONFIG_MAPS, SECRETS
from governor.reconciler.kinds.definition import Values
from governor.reconciler.kinds.installation import ValuesKey, ValuesSource
from governor.reconciler.kinds.module_instance import OWNER_LABEL
from governor.reconciler.kinds.state import Problem
from governor.reconciler.steps.step import Halt, Paused, Work
from governor.values.secret import Secret


async def check_hold(work: Work) -> Work | Halt:
    """Halt if the ModuleInstance is on hold, is not the reconciler's, or its Cluster is missing or paused."""
    instance, cluster = work.instance, work.cluster
    if OWNER_LABEL not in instance.metadata.labels:
        message = "no Installation has created this ModuleInstance: delete it, and create an Installation"
        return Problem("NotManaged", message, Actor.USER)
    if instance.spec.hold is not None:
        return instance.spec.hold
    if cluster is None:
        return Problem("ClusterMissing", f"there is no Cluster {instance.spec.cluster}", Actor.OPERATOR)
    if isinstance(cluster, Unreadable):
        return Problem("ClusterUnreadable", f"Cluster {instance.spec.cluster}: {cluster.reason}", Actor.OPERATOR)
    return Paused() if cluster.spec.paused else work


async def check_module(work: Work) -> Work | Halt:
    """Halt unless the Module is still the one that was resolved. Resolving it again finds out what is wrong."""
    spec, module = work.instance.spec, work.module
    is_same = (
        module is not None and not isinstance(module, Unreadable) and module.spec.chart.digest == spec.chart_digest
    )
    if is_same:
        return work
    message = f"the Module for {spec.module} {spec.version} has changed since; it is being resolved again"
    return Problem("Outdated", message, Actor.NOBODY)


async def read_values(work: Work) -> Work | Halt:
    """Read the layers of values: defaults of the Module, ``valuesFrom``, and those of the ModuleInstance."""
    spec, module = work.instance.spec, work.module
    assert module is not None  # noqa: S101 - ``check_module`` comes first
    assert not isinstance(module, Unreadable)  # noqa: S101
    layers = [_text(module.spec.values)]
    for source in spec.values_from:
        layer = await _read_source(work, source)
        if isinstance(layer, Problem):
            return layer
        layers.append(layer)
    return msgspec.structs.replace(work, values=(*layers, _text(spec.values)))


def _text(values: Values) -> Secret:
    return Secret(msgspec.json.encode(values).decode())


async def _read_source(work: Work, source: ValuesSource) -> Secret | Problem:
    resource = SECRETS if source.secret_ref is not None else CONFIG_MAPS
    key = source.secret_ref or source.config_map_ref
    assert key is not None  # noqa: S101 - the rule of the kind requires one of them
    if resource is SECRETS and key.name in work.kubeconfigs:
        message = f"Secret {key.name} has the kubeconfig of Cluster {work.kubeconfigs[key.name]}: values cannot read it"
        return Problem("SecretForbidden", message, Actor.USER)
    try:
        found = await work.hub.get(resource, key.name, work.instance.metadata.namespace)
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
