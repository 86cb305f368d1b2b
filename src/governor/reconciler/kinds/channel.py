"""Channel: a set of modules in the versions that belong together."""

from typing import Annotated, Final

import msgspec

from governor.kube.controller.views import Resource, ResourceMetadata, Status
from governor.reconciler.kinds.definition import AGE, Column, Definition, ModuleVersion, Part
from governor.reconciler.kinds.state import COMPLETE

MAX_MODULES: Final = 1000


class ChannelSpec(Part, frozen=True):
    """The modules of a channel."""

    modules: Annotated[dict[str, ModuleVersion], msgspec.Meta(max_length=MAX_MODULES)]
    """The version of each module. One edit of this map is one release of the platform."""


class ChannelStatus(Status, frozen=True, gc=False):
    """Whether the modules of a channel exist."""

    modules: int = 0
    """Number of modules in the channel."""


class Channel(Resource, frozen=True, kw_only=True):
    """A set of modules in the versions that belong together. Installations that name a channel follow its edits."""

    metadata: ResourceMetadata
    spec: ChannelSpec
    """The modules of the channel."""
    status: ChannelStatus = ChannelStatus()
    """Whether the modules exist, as last observed."""


CHANNEL: Final = Definition(
    Channel,
    plural="channels",
    short_name="gch",
    columns=(
        Column("Modules", ".status.modules", "integer"),
        Column(COMPLETE, f'.status.conditions[?(@.type=="{COMPLETE}")].status'),
        AGE,
        Column("Message", f'.status.conditions[?(@.type=="{COMPLETE}")].message', wide=True),
    ),
)
