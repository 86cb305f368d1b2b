"""NetworkPolicies that treat a throw-away pod otherwise than its model."""

from typing import Any

import pytest

from governor.agent.platforms.kubernetes.preflight.policies import differing, excused, is_unreachable
from governor.agent.verification.verdicts import Verdict
from governor.domain.documents import ResourceRef
from governor.domain.reports import State

WORKLOAD = {"app": "orders", "tier": "web"}
OTHER: dict[str, str] = {"tier": "web"}
STORE = ResourceRef("Component", "shop", "store")


def policy(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": spec}


def expression(operator: str, key: str = "app", *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("spec", "differs"),
    [
        ({"podSelector": {}, "policyTypes": ["Egress"]}, False),
        ({"podSelector": {"matchLabels": {"app": "orders"}}, "policyTypes": ["Egress"]}, True),
        ({"podSelector": {"matchLabels": {"app": "orders"}}, "egress": [{}]}, True),
        ({"podSelector": {"matchLabels": {"tier": "web"}}, "policyTypes": ["Egress"]}, False),
        ({"podSelector": {"matchLabels": {"app": "orders"}}, "policyTypes": ["Ingress"]}, False),
        ({"podSelector": expression("In", "app", "orders"), "policyTypes": ["Egress"]}, True),
        ({"podSelector": expression("NotIn", "app", "orders"), "policyTypes": ["Egress"]}, True),
        ({"podSelector": expression("Exists"), "policyTypes": ["Egress"]}, True),
        ({"podSelector": expression("DoesNotExist"), "policyTypes": ["Egress"]}, True),
        ({"podSelector": expression("Exists", "tier"), "policyTypes": ["Egress"]}, False),
        (
            {
                "podSelector": {"matchLabels": {"app": "redis"}},
                "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "orders"}}}]}],
            },
            True,
        ),
        ({"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {}}]}]}, False),
    ],
)
def test_a_policy_differs_if_it_selects_or_admits_only_one_of_them(spec: dict[str, Any], differs: bool) -> None:
    assert differing([policy(**spec)], WORKLOAD, OTHER) == (["p"] if differs else [])


def test_only_failed_connections_are_excused() -> None:
    failed = {STORE: Verdict(State.FAILED, "dial tcp: connection refused")}
    assert is_unreachable(failed)
    assert excused(failed, ["p"])[STORE].state is State.RECEIVED
    assert excused(failed, ["p"])[STORE].text.startswith("inconclusive: NetworkPolicy p treats")
    wrong = {STORE: Verdict(State.FAILED, "WRONGPASS invalid username-password pair")}
    assert not is_unreachable(wrong)
    assert excused(wrong, ["p"]) == wrong
    assert not is_unreachable({STORE: Verdict(State.PREFLIGHTED, "initialised")})
