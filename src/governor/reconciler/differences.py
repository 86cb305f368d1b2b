"""How the objects of a module in its cluster differ from what its chart renders now. Nothing is written."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset import ObjectResult, Outcome, Plan, PruneOutcome, PruneResult
from governor.kube.applyset.live import get
from governor.kube.client import Client
from governor.kube.objects import ObjectRef
from governor.reconciler import previews
from governor.reconciler.core_kinds import NAMESPACES
from governor.reconciler.kinds.module import Module
from governor.reconciler.kinds.module_instance import ModuleInstance, Operation
from governor.reconciler.kinds.state import Problem
from governor.reconciler.previews import Preview
from governor.reconciler.release.adoption import Takeover
from governor.reconciler.release.definitions import without_foreign_definitions
from governor.reconciler.release.manifests import is_listed, manifests_of
from governor.reconciler.release.objects import MANAGER, Place, module_objects, objects_client, owner_of
from governor.reconciler.release.record import Records
from governor.reconciler.release.reference import find_key, values_digest
from governor.reconciler.render.masking import sensitive_texts, tree_without_texts
from governor.reconciler.steps.adoption import find_takeover
from governor.reconciler.steps.namespaces import namespace_manifest, namespace_ref
from governor.reconciler.steps.rendering import operation
from governor.reconciler.watch.autoscalers import HORIZONTAL_POD_AUTOSCALERS, SCALED_OBJECTS, Autoscaler
from governor.values.difftext import difference_lines
from governor.values.secret import Secret
from governor.values.treediff import Difference

_GONE: Final = frozenset({PruneOutcome.ABSENT, PruneOutcome.FOREIGN})
"""Outcomes of objects that are not rendered and not the module's either."""


class ObjectDifference(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One object that is not as rendered."""

    object: str
    """Kind, namespace and name."""
    change: str
    """What applying the rendering would do: created, changed, removed, or why that is not possible."""
    reason: str = ""
    differences: tuple[Difference, ...] = ()
    """From the live object to the rendered one, masked."""


class DryRun(msgspec.Struct, frozen=True):
    """What a change would apply, and what that would change; without secrets."""

    manifest: str
    differences: tuple[ObjectDifference, ...]


async def dry_run(hub: Client, place: Place, instance: ModuleInstance, module: Module) -> DryRun:
    """Render a module as the reconciler would now, and compare that with the cluster."""
    takeover = await find_takeover(objects_client(place, instance.spec), instance.spec, instance.status)
    if isinstance(takeover, Problem):
        raise GovernorError(Kind.PRECONDITION, "adoption", takeover.message)
    preview = await _preview(hub, place, instance, module, takeover)
    spec = instance.spec
    former = takeover.owner if takeover else None
    objects = module_objects(place, instance, scaled=await _scaled(place.client), former=former)
    entries, rendered = await objects.inventory(), await previews.render(preview)
    if takeover is None:
        owner = owner_of(spec.module, place.namespace)
        rendered, _ = await without_foreign_definitions(objects_client(place, spec), rendered, entries, owner.id)
    manifests = await manifests_of(place.client, rendered)
    namespace = namespace_ref(spec.namespace)
    if not is_listed(manifests, namespace) and await _is_needed(place.client, entries, namespace):
        manifests.append(namespace_manifest(spec.namespace))
    found = _differences(await objects.plan(manifests), sensitive_texts(preview.values))
    return DryRun(previews.text_of(rendered, preview), tuple(found))


async def _preview(
    hub: Client, place: Place, instance: ModuleInstance, module: Module, takeover: Takeover | None
) -> Preview:
    """Return the preview with what the chart has generated before."""
    preview = await previews.from_hub(hub, place.client, instance, module)
    record = await Records(place.client, place.namespace, instance.spec.module, MANAGER).read()
    digest = values_digest(instance.spec, preview.values, await find_key(hub, place.namespace) or Secret(""))
    status, has_objects = instance.status, bool(instance.status.objects)
    known = takeover.operation if takeover else None
    change = known or operation(status, instance.spec.chart_digest, digest, has_objects=has_objects)
    return msgspec.structs.replace(
        preview, is_upgrade=change is not Operation.INSTALL, recording=record.record.recording
    )


async def _is_needed(client: Client, entries: Iterable[ObjectRef], namespace: ObjectRef) -> bool:
    """Return whether the module creates its namespace, or has created it."""
    return namespace in entries or await get(client, NAMESPACES, namespace) is None


async def _scaled(client: Client) -> list[ObjectRef]:
    """Return the workloads whose number of replicas is an autoscaler's."""
    found: list[ObjectRef] = []
    for kind in (HORIZONTAL_POD_AUTOSCALERS, SCALED_OBJECTS):
        try:
            resource = await client.discovery.find(kind.group, kind.kind, kind.version)
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise
        else:
            found += [msgspec.convert(each, Autoscaler).target async for each in client.list(resource)]
    return found


def _differences(plan: Plan, texts: Sequence[str]) -> Iterator[ObjectDifference]:
    for result in plan.apply.results:
        if result.outcome is not Outcome.UNCHANGED:
            yield _applied(result, texts)
    for pruned in plan.prune.results:
        if pruned.outcome not in _GONE:
            yield _pruned(pruned)


def _applied(result: ObjectResult, texts: Sequence[str]) -> ObjectDifference:
    shown = tuple(_masked(each, texts) for each in result.differences)
    return ObjectDifference(str(result.ref), result.outcome, result.error or result.reason, shown)


def _masked(difference: Difference, texts: Sequence[str]) -> Difference:
    old, new = (tree_without_texts(each, texts) for each in (difference.old, difference.new))
    return msgspec.structs.replace(difference, old=old, new=new)


def _pruned(result: PruneResult) -> ObjectDifference:
    return ObjectDifference(str(result.ref), result.outcome, result.reason)


def difference_text(differences: Iterable[ObjectDifference]) -> str:
    """Return what differs, one object after the other; an empty text if nothing does."""
    return "\n".join(line for each in differences for line in _lines(each))


def _lines(difference: ObjectDifference) -> Iterator[str]:
    reason = f": {difference.reason}" if difference.reason else ""
    yield f"{difference.object}: {difference.change}{reason}"
    for each in difference.differences:
        yield from (f"  {line}" for line in difference_lines(each))
