"""The reconcile loop and its work queue of keys with priorities and fairness."""
