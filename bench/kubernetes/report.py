"""Tables of the Kubernetes agent's benchmarks: the figures beside their limits, and their parts."""

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from bench.kubernetes.failovers import Failovers
from bench.kubernetes.methods import GOVERNOR, KUBECTL
from bench.kubernetes.reloads import Reload, Reloads
from bench.kubernetes.replayed import Replayed, Sample
from bench.percentiles import p99

PROVEN_LIMIT_MS: Final = 1000.0
ADDED_LIMIT_MS: Final = 300.0
RESIDENT_LIMIT_MIB: Final = 80.0
PREFLIGHT_LIMIT_S: Final = 5.0
_PICKS: Final[tuple[tuple[str, Callable[[Sequence[float]], float]], ...]] = (
    ("median", statistics.median),
    ("p99", p99),
)
_CODE: Final = re.compile(r'"errorCode":\s*"(\w+)"')


def dapr_ms(reloads: Sequence[Reload]) -> list[float]:
    """Return what Dapr itself needed: from the written component to the first answer from the new store."""
    return [(each.seen - each.written) * 1e3 for each in reloads]


def used_ms(reloads: Sequence[Reload]) -> list[float]:
    """Return the times from the beginning to the first answer from the new store."""
    return [(each.seen - each.began) * 1e3 for each in reloads]


def done_ms(reloads: Sequence[Reload]) -> list[float]:
    """Return the times from the beginning to the end."""
    return [(each.done - each.began) * 1e3 for each in reloads]


def added_ms(reloads: Reloads) -> list[float]:
    """Return per round how much longer the proof took than Dapr itself with kubectl: a round shares its noise."""
    ours, theirs = done_ms(reloads.by_method[GOVERNOR]), dapr_ms(reloads.by_method[KUBECTL])
    return [one - other for one, other in zip(ours, theirs, strict=True)]


def failed(reloads: Sequence[Reload]) -> int:
    """Return the number of failed requests."""
    return sum(len(each.failures) for each in reloads)


def reason(text: str) -> str:
    """Return how a request failed: its status and Dapr's error code, or the kind of the connection's error."""
    code = _CODE.search(text)
    words = text.removeprefix("error ").split(maxsplit=1)[:1]
    return " ".join([*words, *([code[1]] if code else [])]).rstrip(":")


def headlines(reloads: Reloads) -> Iterator[str]:
    """Yield the table with the limits. kubectl's times begin when the API server has the component."""
    ours, theirs = reloads.by_method[GOVERNOR], reloads.by_method[KUBECTL]
    yield "| | governor | kubectl apply alone | limit |"
    yield "|---|---|---|---|"
    for title, pick in _PICKS:
        used, alone = pick(used_ms(ours)), pick(dapr_ms(theirs))
        yield f"| ms until the application uses the new store, {title} | {used:.0f} | {alone:.0f} | |"
    for title, pick, limit_ms in ((*_PICKS[0], PROVEN_LIMIT_MS), (*_PICKS[1], None)):
        proven = pick(done_ms(ours))
        limit = _limit(proven, limit_ms) if limit_ms else ""
        yield f"| ms until its use is proven, {title} | {proven:.0f} | no proof | {limit} |"
    added, title = statistics.median(added_ms(reloads)), "ms that the proof takes longer than Dapr itself, median"
    yield f"| {title} | {added:.0f} | | {_limit(added, ADDED_LIMIT_MS)} |"
    if reloads.preflighted:
        tried = statistics.median(reloads.preflighted)
        yield f"| s until proven with preflight, median | {tried:.1f} | | {_limit(tried, PREFLIGHT_LIMIT_S)} |"
    verdict = f"kubectl's: {_met(failed(ours) <= failed(theirs))}"
    yield f"| failed requests in {len(ours)} changes | {failed(ours)} | {failed(theirs)} | {verdict} |"


def parts(reloads: Reloads) -> Iterator[str]:
    """Yield the table of the parts of each method's changes; kubectl's last part, the proof, does not exist."""
    yield "| ms | | until written | until used | until proven | total |"
    yield "|---|---|---|---|---|---|"
    for method, each in reloads.by_method.items():
        is_ours = method == GOVERNOR
        total = done_ms(each) if is_ours else used_ms(each)
        proof = [(one.done - one.seen) * 1e3 for one in each]
        for title, pick in _PICKS:
            written, used = pick([(one.written - one.began) * 1e3 for one in each]), pick(dapr_ms(each))
            proven = f"{pick(proof):.0f}" if is_ours else ""
            yield f"| {method} | {title} | {written:.0f} | {used:.0f} | {proven} | {pick(total):.0f} |"


def failures(reloads: Reloads) -> Iterator[str]:
    """Yield the table of failed requests."""
    yield "| method | changes | with failed requests | failed requests | ms from first to last, most | how |"
    yield "|---|---|---|---|---|---|"
    for method, each in reloads.by_method.items():
        affected = [one.failures for one in each if one.failures]
        longest = max((one[-1][0] - one[0][0] for one in affected), default=0.0) * 1e3
        reasons = Counter(reason(text) for one in affected for _, text in one)
        how = ", ".join(f"{count} x {name}" for name, count in reasons.most_common())
        yield f"| {method} | {len(each)} | {len(affected)} | {failed(each)} | {longest:.0f} | {how} |"
    pairs = list(zip(reloads.by_method[GOVERNOR], reloads.by_method[KUBECTL], strict=True))
    more = sum(len(ours.failures) > len(theirs.failures) for ours, theirs in pairs)
    fewer = sum(len(ours.failures) < len(theirs.failures) for ours, theirs in pairs)
    yield ""
    yield f"The agent's change had more failed requests in {more} rounds and fewer in {fewer} of {len(pairs)}."
    if reloads.preflighted:
        spread = f"{min(reloads.preflighted):.1f} to {max(reloads.preflighted):.1f} s"
        yield f"With preflight, {len(reloads.preflighted)} changes took {spread}."
    sent, mib = reloads.requests, reloads.resident_mib
    yield f"The agent sent {sent:.0f} requests to the API server per change and has {mib:.1f} MiB."


def replayed_table(replayed: Replayed) -> Iterator[str]:
    """Yield the table of changes with replayed sidecars."""
    yield "| sidecars | workloads | changes | | s until verified | CPU s of the agent | requests to the API server |"
    yield "|---|---|---|---|---|---|---|"
    for title, pick in (("median", statistics.median), ("most", max)):
        figures = [pick([getattr(each, name) for each in replayed.samples]) for name in Sample.__struct_fields__]
        cells = f"{figures[0]:.2f} | {figures[1]:.2f} | {figures[2]:.0f}"
        yield f"| {replayed.sidecars} | {replayed.workloads} | {len(replayed.samples)} | {title} | {cells} |"
    yield ""
    seen = f"{replayed.idle_mib:.1f} MiB without sidecars, {replayed.resident_mib:.1f} with {replayed.sidecars}"
    yield f"Resident memory of the agent: {seen}; limit {_limit(replayed.resident_mib, RESIDENT_LIMIT_MIB)}."


def failover_table(found: Failovers) -> Iterator[str]:
    """Yield the table of fail-overs between two replicas."""
    yield "| the leading agent | times | | s until the other one leads | s until a change made meanwhile is verified |"
    yield "|---|---|---|---|---|"
    for how, samples in found.by_cause.items():
        for title, pick in (("median", statistics.median), ("most", max)):
            leads, verified = (pick([getattr(each, name) for each in samples]) for name in ("leads_s", "verified_s"))
            yield f"| {how} | {len(samples)} | {title} | {leads:.1f} | {verified:.1f} |"
    yield ""
    yield f"Resident memory: {found.leader_mib:.1f} MiB of the agent that leads, {found.standby_mib:.1f} of the other."


def _limit(value: float, limit: float) -> str:
    return f"{limit:,.0f}: {_met(value <= limit)}"


def _met(is_met: bool) -> str:
    return "met" if is_met else "missed"
