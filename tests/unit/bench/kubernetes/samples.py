"""Samples of `make bench-kubernetes` for its tests."""

from collections.abc import Sequence

from bench.kubernetes.methods import GOVERNOR, KUBECTL
from bench.kubernetes.reloads import Reload, Reloads

NOT_CONFIGURED = '502 Dapr responded 500 to GET /state/statestore/order: {"errorCode":"ERR_STATE_STORE_NOT_CONFIGURED"}'


def reload(written_ms: float, seen_ms: float, done_ms: float, *failed_ms: float) -> Reload:
    """Return a change with times in milliseconds after its beginning."""
    failures = tuple((1000 + each / 1e3, NOT_CONFIGURED) for each in failed_ms)
    return Reload(1000.0, 1000 + written_ms / 1e3, 1000 + seen_ms / 1e3, 1000 + done_ms / 1e3, failures)


def reloads(ours: Sequence[Reload], theirs: Sequence[Reload]) -> Reloads:
    """Return the changes of both methods."""
    return Reloads({GOVERNOR: list(ours), KUBECTL: list(theirs)}, requests=40.0, resident_mib=61.9)
