"""Controllers and the operator that runs them.

``Controller`` is the declaration, ``Operator`` runs controllers while it leads, ``Context`` is what a reconcile
function receives. Pure decisions are in ``mapping``, ``conditions`` and ``event_correlator``. The queue is
``governor.process.reconcile``, owned objects are written by ``governor.kube.applyset``, and their readiness is
``governor.kube.readiness``. No product nouns.
"""

from governor.kube.controller.conditions import Condition
from governor.kube.controller.context import Context, Converged
from governor.kube.controller.controller import Controller, OwnedBy
from governor.kube.controller.event_correlator import EventType
from governor.kube.controller.mapping import NamespacedName
from governor.kube.controller.operator import Operator, OperatorSettings, main
from governor.kube.controller.views import Resource, ResourceMetadata, Status

__all__ = [
    "Condition",
    "Context",
    "Controller",
    "Converged",
    "EventType",
    "NamespacedName",
    "Operator",
    "OperatorSettings",
    "OwnedBy",
    "Resource",
    "ResourceMetadata",
    "Status",
    "main",
]
