"""What the settings of an agent require, by platform."""

from pathlib import Path

import pytest

from governor.agent.settings import Settings
from governor.errors import GovernorError
from governor.process.settings import load


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("platform: local\n", "state-dir: required by the platform local"),
        ("state-dir: s\nleader-election: true\n", "leader-election: only with the platform kubernetes"),
        ("state-dir: s\nobserve: true\n", "observe: only with the platform kubernetes"),
        (
            "platform: kubernetes\nnamespaces: [shop]\nobserve: true\nleader-election: true\n",
            "leader-election: not with observe, which writes no Lease",
        ),
        ("platform: kubernetes\n", "namespaces: the platform kubernetes needs at least one"),
    ],
)
def test_a_platform_names_what_it_needs(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(content)

    with pytest.raises(GovernorError) as raised:
        load(Settings, "agent", environ={}, config=file)

    assert message in str(raised.value)


def test_an_agent_for_a_cluster_needs_no_state_directory(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("platform: kubernetes\nnamespaces: [shop]\nadopted-managers: [helm]\nsidecar-access: proxy\n")

    found = load(Settings, "agent", environ={}, config=file)

    assert (found.namespaces, found.adopted_managers, found.sidecar_access) == (("shop",), ("helm",), "proxy")
