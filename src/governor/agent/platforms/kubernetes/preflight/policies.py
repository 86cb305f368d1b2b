"""NetworkPolicies that treat a throw-away pod otherwise than the pods after which it is made. Pure.

Only those of its namespace are known. Where they differ, a connection that fails in the throw-away pod proves nothing.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from governor.agent.platforms.kubernetes.restarts.decision import Selector
from governor.agent.verification.verdicts import Verdict, Verdicts
from governor.domain.reports import State
from governor.kube.objects import Object

_UNREACHABLE: Final = re.compile(
    r"connection refused|connection reset|timeout|timed out|no such host|no route to host|network is unreachable"
    r"|server misbehaving|deadline exceeded|not initialised within"
)


def is_unreachable(verdicts: Verdicts) -> bool:
    """Return whether any resource failed because of a connection."""
    return any(_is_unreachable(each) for each in verdicts.values())


def differing(policies: Iterable[Object], workload: Mapping[str, str], throw_away: Mapping[str, str]) -> list[str]:
    """Return the names of the policies that allow pods with one set of labels what they deny pods with the other."""
    return sorted(
        each["metadata"]["name"]
        for each in policies
        if any(one.selects(workload) != one.selects(throw_away) for one in _selectors(each["spec"]))
    )


def excused(verdicts: Verdicts, policies: Iterable[str]) -> Verdicts:
    """Return the verdicts with failed connections as inconclusive, because of these policies."""
    named = f"NetworkPolicy {', '.join(policies)}"
    cause = f"{named} treats the throw-away pod differently; name the labels that it selects in apply.preflightLabels"
    return {
        ref: Verdict(State.RECEIVED, f"inconclusive: {cause}: {each.text}") if _is_unreachable(each) else each
        for ref, each in verdicts.items()
    }


def _is_unreachable(verdict: Verdict) -> bool:
    return verdict.state is State.FAILED and _UNREACHABLE.search(verdict.text) is not None


def _selectors(spec: Mapping[str, Any]) -> Iterator[Selector]:
    """Yield the selectors of the pods whose connections a policy restricts, and of those that it admits."""
    if "egress" in spec or "Egress" in (spec.get("policyTypes") or ()):
        yield msgspec.convert(spec.get("podSelector") or {}, Selector)
    for rule in spec.get("ingress") or ():
        for peer in rule.get("from") or ():
            if "podSelector" in peer:
                yield msgspec.convert(peer["podSelector"] or {}, Selector)
