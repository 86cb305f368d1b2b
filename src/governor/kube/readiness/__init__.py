"""Readiness of one object, computed from the object alone, in the manner of kstatus.

``compute_readiness`` uses the rule of the object's kind or the caller's own ``Rules``; ``summarise`` combines the
readiness of many objects. Everything is pure: fetching objects and waiting is left to the caller.
"""

from governor.kube.readiness.kinds import compute_readiness
from governor.kube.readiness.rules import Operator, Rule, Rules
from governor.kube.readiness.state import Readiness, State, summarise

__all__ = ["Operator", "Readiness", "Rule", "Rules", "State", "compute_readiness", "summarise"]
