"""Percentiles of samples."""

import math
from collections.abc import Iterable


def p99(values: Iterable[float]) -> float:
    """Return the 99th percentile by nearest rank: of fewer than a hundred values it is the largest."""
    ordered = sorted(values)
    return ordered[math.ceil(len(ordered) * 0.99) - 1]
