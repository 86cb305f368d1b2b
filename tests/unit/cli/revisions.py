"""Progress values for the tests of following a revision and of showing it."""

from governor.domain.conditions import Actor, Summary
from governor.wire.rest import RevisionProgress, RuntimeProgress


def runtime(runtime: str, state: str, *, done: bool = False, seconds: float = 0.5) -> RuntimeProgress:
    return RuntimeProgress(runtime, 1, Summary(state, state, f"it is {state}", Actor.NOBODY), done, seconds)


def revision(*runtimes: RuntimeProgress) -> RevisionProgress:
    return RevisionProgress(7, all(each.done for each in runtimes), runtimes)


def without_agent(name: str) -> RuntimeProgress:
    """Return a runtime for which no agent has enrolled."""
    return RuntimeProgress(name, 1, Summary("Pending", "NotEnrolled", "no agent", Actor.OPERATOR), False, 0.5)
