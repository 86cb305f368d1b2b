"""Which tests run in the same process when several run at once: those that share an expensive server.

xdist has a mark for this, but what it writes to a test's name no longer counts with this pytest; so the file says it.
"""

from pathlib import PurePosixPath

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

_CONTROL_PLANES = 2
_WITH_CONTROL_PLANE = ("deploy/test_chart_server.py", "testbed/test_api_faults.py", "testbed/test_control_plane.py")


def group_of(nodeid: str) -> str:
    """The machine has one real cluster; three processes share out the tests of the API server; others run anywhere.

    An API server that does nothing still takes a tenth of a core, and it stays until its process has no more tests.
    """
    file = PurePosixPath(nodeid.partition("::")[0])
    if file.parent.name == "cluster":
        return "cluster"
    if "contract/kube/" in nodeid:
        return f"control-plane-{sum(str(file).encode()) % _CONTROL_PLANES}"
    return "control-plane" if nodeid.partition("::")[0].endswith(_WITH_CONTROL_PLANE) else nodeid


class Groups(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a whole group to one process, the largest first."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Groups:
    """Called by xdist, whatever ``--dist`` says."""
    return Groups(config, log)
