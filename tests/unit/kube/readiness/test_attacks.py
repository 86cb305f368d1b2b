"""Readiness of objects with arbitrary field values."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from governor.kube.readiness.kinds import ALWAYS_READY, RULES_BY_KIND, compute_readiness
from governor.kube.readiness.rules import Operator, Rule, Rules
from governor.kube.readiness.state import Readiness, State

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["True", "1" * 5000, "Bound"])
)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    "conditions", "phase", "observedGeneration", "replicas", "loadBalancer", "containerStatuses", "hard", "allocation",
    "attachError", "typeChecking", "generation", "deletionTimestamp", "finalizers", "updateStrategy", "type", "paused",
)  # fmt: skip
conditions = st.lists(
    st.dictionaries(st.sampled_from(["type", "status", "reason", "message", "observedGeneration"]), scalars) | trees,
    max_size=3,
)
parts = trees | st.dictionaries(st.sampled_from(FIELDS), trees | conditions, max_size=4)
KINDS = sorted({*RULES_BY_KIND, *ALWAYS_READY, ("example.dev", "Thing")})


@given(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), parts))
def test_arbitrary_objects_have_a_readiness(group_kind: tuple[str, str], manifest: dict[str, Any]) -> None:
    group, kind = group_kind
    whole = {"apiVersion": f"{group}/v1" if group else "v1", "kind": kind} | manifest
    rules = Rules(
        (Rule("status.phase", Operator.EQUALS, "Bound"), Rule("status.conditions[Ready].status", Operator.AT_LEAST, 1))
    )
    assert isinstance(compute_readiness(whole), Readiness)
    assert isinstance(compute_readiness(whole, rules), Readiness)


def test_a_generation_of_five_thousand_digits_is_not_ready() -> None:
    manifest = {"apiVersion": "example.dev/v1", "kind": "Thing", "status": {"observedGeneration": "9" * 5000}}
    assert compute_readiness(manifest).state is not State.READY
