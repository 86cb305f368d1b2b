"""Benchmarks of the reconciler: rendering a thousand releases of one small chart."""
