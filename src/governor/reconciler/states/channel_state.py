"""The status of a Channel: whether its modules exist."""

from collections.abc import Iterable

from governor.reconciler.kinds.channel import Channel, ChannelStatus
from governor.reconciler.kinds.state import COMPLETE
from governor.reconciler.states.conditions import met, published, unmet
from governor.values.printing import listed


def channel_status(channel: Channel, missing: Iterable[str]) -> ChannelStatus:
    """Return the status of a Channel; ``missing`` are its modules without a Module of their version."""
    absent = sorted(f"{each} {channel.spec.modules[each]}" for each in missing)
    if absent:
        message = f"there are no Modules for {listed(absent)}: create them"
        condition = unmet(COMPLETE, "ModuleMissing", message)
    else:
        condition = met(COMPLETE, COMPLETE, "all modules exist in their versions")
    return ChannelStatus(conditions=(published(condition),), modules=len(channel.spec.modules))
