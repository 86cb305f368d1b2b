"""Leader election by a Lease of coordination.k8s.io/v1, as in client-go.

``candidate`` is the pure state machine; ``elector`` talks to the API server and runs the work while leading. Sharding
work among several leaders is left to the caller.
"""

from governor.kube.lease.candidate import Timing
from governor.kube.lease.elector import LEASES, LIMITS, LeaderElector, master_status_gauge

__all__ = ["LEASES", "LIMITS", "LeaderElector", "Timing", "master_status_gauge"]
