"""What the metrics of ``governor reconciler`` show."""

import re
from typing import Final

from governor.reconciler.controllers.module_instances import NAME

HUB: Final = "runtime-governor"
"""The hub namespace."""


def reconciled(metrics: str) -> float:
    """Return how many reconciliations of ModuleInstances have found everything as desired, or made it so."""
    return _total(metrics, "controller_runtime_reconcile_total", f'controller="{NAME}",result="success"')


def waiting(metrics: str) -> float:
    """Return how many keys of all controllers wait or are being reconciled."""
    return _total(metrics, "workqueue_depth") + _total(metrics, "controller_runtime_active_workers")


def is_caught_up(metrics: str, modules: int) -> bool:
    """Return whether the program leads, has reconciled all ModuleInstances, and has nothing left to do."""
    is_leader = _total(metrics, "leader_election_master_status") == 1
    return is_leader and reconciled(metrics) >= modules and waiting(metrics) == 0


def _total(metrics: str, name: str, label: str = "") -> float:
    found = re.findall(rf"^{name}\{{[^}}]*{label}[^}}]*\}} (\S+)", metrics, re.MULTILINE)
    return sum(map(float, found))
