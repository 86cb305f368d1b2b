"""Benchmarks of the reconciler: a thousand modules on a real API server, and rendering alone (``renderers``).

The chart of the modules is in ``seven-objects``. Excluded: the Kubernetes library alone (``bench.kube``).
"""
