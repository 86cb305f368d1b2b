"""How a running sidecar takes a changed resource of each kind."""

import enum
from collections.abc import Mapping
from typing import Final


class Reload(enum.StrEnum):
    """What must happen before a sidecar of the supported version can be using a change."""

    LIVE = "live"
    """It loads the change while it runs."""
    RESTART = "restart"
    """Only a runtime started after the change uses it, whoever starts it."""


RELOAD: Final[Mapping[str, Reload]] = {
    "Component": Reload.LIVE,
    "Configuration": Reload.RESTART,
    "HTTPEndpoint": Reload.RESTART,
    "MCPServer": Reload.LIVE,
    "Resiliency": Reload.RESTART,
    "Subscription": Reload.LIVE,
    "WorkflowAccessPolicy": Reload.LIVE,
}
