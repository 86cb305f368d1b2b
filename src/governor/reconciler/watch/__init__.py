"""What is known of one target cluster without a request: inventories, applied objects and autoscalers, from watches.

Each kind is listed once for all modules and watched from then on. What must change is decided by the caller.
"""

from governor.reconciler.watch.cluster_watch import ClusterWatch, module_of
from governor.reconciler.watch.inventories import InventoryState
from governor.reconciler.watch.objects import ObjectState

__all__ = ["ClusterWatch", "InventoryState", "ObjectState", "module_of"]
