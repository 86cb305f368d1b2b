"""Benchmarks of the Kubernetes agent: hot reloads in a real cluster, and changes with a thousand replayed sidecars.

Excluded: the Kubernetes library alone (``bench.kube``) and the agent for one machine (``bench.change``).
"""
