"""The states of a cluster and of a module on it, the types of their conditions, and who must act next."""

import enum
from typing import Final

from governor.domain.conditions import Actor
from governor.reconciler.kinds.definition import ModuleName, Part

REACHABLE: Final = "Reachable"
"""Whether the API server of a Cluster answers."""
RESOLVED: Final = "Resolved"
"""Whether everything that is referred to exists and fits together."""
DEPLOYED: Final = "Deployed"
"""Whether the desired version and values are applied: the health of the deployment."""
HEALTHY: Final = "Healthy"
"""Whether the applied objects are ready: the health of the module itself."""
READY: Final = "Ready"
"""Whether the state is Ready; for ``kubectl wait``."""
COMPLETE: Final = "Complete"
"""Whether all modules of a Channel exist."""


class State(enum.StrEnum):
    """The one state of a Cluster or ModuleInstance."""

    PENDING = "Pending"
    """Work has not begun."""
    PROCESSING = "Processing"
    """Work is under way, and no action is needed."""
    READY = "Ready"
    """The desired version is applied and healthy."""
    WARNING = "Warning"
    """It needs an action of the cluster's user."""
    ERROR = "Error"
    """It needs an action of the operator."""
    DELETING = "Deleting"
    """It is being removed."""
    UNKNOWN = "Unknown"
    """The cluster has not answered for some time; it may be in any state."""


class Problem(Part, frozen=True):
    """Why something cannot proceed."""

    reason: str
    """The reason as one word in CamelCase, such as Conflict."""
    message: str
    """What is wrong, and what to do next."""
    actor: Actor
    """Who must act next."""

    @property
    def state(self) -> State:
        """Return the state of what has this problem, which depends on who must act."""
        return _STATES[self.actor]


_STATES: Final = {
    Actor.NOBODY: State.PROCESSING,
    Actor.EDITOR: State.WARNING,
    Actor.USER: State.WARNING,
    Actor.OPERATOR: State.ERROR,
}


class ModuleLine(Part, frozen=True):
    """The state of one module on a cluster."""

    module: ModuleName
    """Name of the module."""
    state: State
    """Its state."""
    version: str = ""
    """The desired version, empty if it is not known."""
    reason: str = ""
    """Why it has this state, as one word in CamelCase."""
    message: str = ""
    """The same for people, with what to do next."""
    actor: Actor = Actor.NOBODY
    """Who must act next."""


class ModuleCounts(Part, frozen=True, omit_defaults=False):
    """Number of modules in each state."""

    total: int = 0
    """All modules."""
    ready: int = 0
    """Modules that are Ready."""
    progressing: int = 0
    """Modules that are Pending, Processing or Deleting."""
    warning: int = 0
    """Modules for which the cluster's user must act."""
    error: int = 0
    """Modules for which the operator must act."""
    unknown: int = 0
    """Modules whose state is not known, because the cluster does not answer."""
