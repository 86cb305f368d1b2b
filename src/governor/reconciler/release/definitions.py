"""Definitions in the directory ``crds`` of a chart that exist already and are not the module's.

Many charts bring the definitions of the same kinds, and users install some of them beforehand. As with Helm, such a
definition stays as it is; it belongs to its first owner, who upgrades and removes it.
"""

from collections.abc import Collection
from typing import Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset.live import owner_of
from governor.kube.applyset.order import gather_bounded
from governor.kube.client import Client
from governor.kube.objects import ObjectRef, ref_of
from governor.reconciler.core_kinds import CUSTOM_RESOURCE_DEFINITIONS
from governor.reconciler.release.objects import SETTINGS
from governor.reconciler.render.request import Document, Rendered

_UNKNOWN: Final = frozenset({Kind.NOT_FOUND, Kind.DENIED})


async def without_foreign_definitions(
    client: Client, rendered: Rendered, own: Collection[ObjectRef], owner: str
) -> tuple[Rendered, tuple[ObjectRef, ...]]:
    """Return the rendering without the definitions of others, and these; ``own`` are known to be the module's.

    The ``client`` has the permissions of the chart. One that may not be read is left to the apply, which reports that.
    """

    async def is_foreign(document: Document) -> bool:
        ref = ref_of(document.object)
        return ref not in own and await _exists_elsewhere(client, ref, owner)

    found = await gather_bounded(rendered.crds, is_foreign, SETTINGS.concurrency)
    kept = tuple(each for each, foreign in zip(rendered.crds, found, strict=True) if not foreign)
    left = tuple(ref_of(each.object) for each, foreign in zip(rendered.crds, found, strict=True) if foreign)
    return msgspec.structs.replace(rendered, crds=kept), left


async def _exists_elsewhere(client: Client, ref: ObjectRef, owner: str) -> bool:
    if (ref.group, ref.kind) != (CUSTOM_RESOURCE_DEFINITIONS.group, CUSTOM_RESOURCE_DEFINITIONS.kind):
        return False
    try:
        live = await client.get(CUSTOM_RESOURCE_DEFINITIONS, ref.name, metadata_only=True)
    except GovernorError as error:
        if error.kind not in _UNKNOWN:
            raise
        return False
    return owner_of(live, SETTINGS) != owner
