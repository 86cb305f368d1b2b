"""The permissions of an agent that only observes."""

import re

import yaml

from governor.agent.platforms.kubernetes.permissions import OBSERVED, PERMISSIONS, Scope
from toolchain.repository import REPOSITORY

HOW_TO = REPOSITORY / "docs/how-to/observe-a-cluster.md"


def test_an_observing_agent_may_only_read_and_no_secrets() -> None:
    pairs = {(each.group, *pair) for each in OBSERVED for pair in each.pairs()}
    governing = {(each.group, *pair) for each in PERMISSIONS for pair in each.pairs()}
    assert {verb for _, _, verb in pairs} == {"get", "list", "watch"}
    assert "secrets" not in {resource for _, resource, _ in pairs}
    assert pairs <= governing
    assert {each.scope for each in OBSERVED} == {Scope.MANAGED}


def test_the_role_in_the_how_to_is_exactly_that() -> None:
    [text] = re.findall(r"```yaml\n(# observer\.yaml\n.*?)```", HOW_TO.read_text(), re.DOTALL)
    role = yaml.safe_load(text)
    assert role["rules"] == [
        {"apiGroups": [each.group], "resources": [*each.resources], "verbs": [*each.verbs]} for each in OBSERVED
    ]
