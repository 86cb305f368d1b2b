"""Takes objects over from another owner: Helm, Flux or Argo CD. Nothing is written before a dry run of all objects.

The objects themselves are taken over by ``apply``, one after the other, and by the same runs as any change: an adoption
that is interrupted is continued.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from governor.domain.conditions import Actor
from governor.errors import GovernorError
from governor.kube.applyset import ObjectResult, Outcome
from governor.kube.applyset.results import SUCCEEDED
from governor.kube.client import Client
from governor.kube.objects import ObjectRef
from governor.reconciler.kinds.module_instance import ModuleInstanceSpec, ModuleInstanceStatus, Operation
from governor.reconciler.kinds.state import DEPLOYED as STAGE
from governor.reconciler.kinds.state import Problem
from governor.reconciler.release.adoption import FormerOwner, Takeover, former_owner
from governor.reconciler.release.helm_release import DEPLOYED, HelmRecord, read_release
from governor.reconciler.release.manifests import name_of, rendered_names
from governor.reconciler.release.objects import objects_client
from governor.reconciler.render.request import Rendered
from governor.reconciler.steps.apply import desired_objects
from governor.reconciler.steps.step import Halt, Halted, Retry, Work, failed
from governor.values.printing import listed

_MARKS: Final = ("metadata.labels", "metadata.annotations")
"""Fields that an adoption changes: by them an owner marks its objects."""


async def find_former_owner(work: Work) -> Work | Halt:
    """Find out from which owner the objects are taken over, if any, and whether it is idle."""
    if work.is_settled or work.instance.spec.adopt is None:
        return work
    client = objects_client(work.on.place, work.instance.spec)
    try:
        found = await find_takeover(client, work.instance.spec, work.status)
    except GovernorError as error:
        return failed(work, "NotAdopted", error)
    if isinstance(found, Problem):
        return Halted(found, STAGE, Retry.BACKOFF, work)
    return msgspec.structs.replace(work, takeover=found)


async def find_takeover(
    client: Client, spec: ModuleInstanceSpec, status: ModuleInstanceStatus
) -> Takeover | Problem | None:
    """Return the adoption that a module begins with or has begun, None if there is none, or why it cannot begin."""
    owner = former_owner(spec) if status.last_applied is None else None
    if owner is None:
        return None
    if status.attempt is not None and status.attempt.is_adoption:
        return Takeover(owner, status.attempt.operation)
    record = await read_release(client, owner.release) if owner.release else None
    return _problem(owner, record) or _takeover(owner, record)


def _problem(owner: FormerOwner, record: HelmRecord | None) -> Problem | None:
    if record is None:
        if not owner.is_release_required:
            return None
        message = f"there is no {owner.title}: correct spec.adopt, or remove it to install the module"
        return Problem("ReleaseMissing", message, Actor.USER)
    if record.status == DEPLOYED:
        return None
    message = f"{owner.title} is {record.status}: complete it, or roll it back, before it is taken over"
    return Problem("ReleaseBusy", message, Actor.USER)


def _takeover(owner: FormerOwner, record: HelmRecord | None) -> Takeover:
    if record is None:
        return Takeover(owner)
    operation = Operation.INSTALL if record.version == 1 else Operation.UPGRADE
    return Takeover(owner, operation, tuple(record.objects()))


async def check_adoption(work: Work) -> Work | Halt:
    """Halt if a dry run shows that the adoption would change more than marks, unless that is allowed."""
    takeover, adopt, rendered = work.takeover, work.instance.spec.adopt, work.rendered
    if takeover is None or adopt is None or rendered is None or adopt.allow_changes:
        return work
    objects, manifests = await desired_objects(work, rendered)
    plan = await objects.plan(manifests)
    left = left_behind(takeover.objects, rendered, work.instance.spec.namespace)
    found = [*deviations(plan.apply.results), *(f"{each}: is not rendered, and would stay" for each in left)]
    if not found:
        return work
    message = (
        f"{takeover.owner.title} is not what the chart renders, nothing was written: {listed(found)}; "
        "correct values or version, or set spec.adopt.allowChanges"
    )
    return Halted(Problem("AdoptionDiffers", message, Actor.USER), STAGE, Retry.BACKOFF, work)


def left_behind(objects: Iterable[ObjectRef], rendered: Rendered, namespace: str) -> list[str]:
    """Return the objects of the former owner that the chart does not render."""
    names = rendered_names(rendered, namespace)
    return sorted(str(each) for each in objects if name_of(each, namespace) not in names)


def deviations(results: Iterable[ObjectResult]) -> Iterator[str]:
    """Return what a dry run would do beside moving marks, one text for each object; values are left out."""
    for each in results:
        if each.outcome not in SUCCEEDED:
            yield f"{each.ref}: {each.error}"
        elif each.outcome is Outcome.CREATED:
            yield f"{each.ref}: does not exist"
        elif each.outcome is Outcome.RECREATED:
            yield f"{each.ref}: would be re-created: {each.reason}"
        elif paths := [item.path for item in each.differences if not item.path.startswith(_MARKS)]:
            yield f"{each.ref}: {listed(paths)}"
