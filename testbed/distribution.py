"""Which tests run in the same process when several run at once: those that share an expensive server.

xdist has a mark for this, but what it writes to a test's name no longer counts with this pytest; so the file says it.
"""

from pathlib import PurePosixPath

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

_CONTROL_PLANES = 2
_WITH_CONTROL_PLANE = ("deploy/test_chart_server.py", "testbed/test_api_faults.py", "testbed/test_control_plane.py")


def group_of(nodeid: str) -> str:
    """Return the group of a test: one for the real cluster, three for API servers, else its own id.

    An idle API server still uses a tenth of a core, and runs until its process has no more tests.
    """
    file = PurePosixPath(nodeid.partition("::")[0])
    if file.parent.name == "cluster":
        return "cluster"
    if "contract/kube/" in nodeid:
        return f"control-plane-{sum(str(file).encode()) % _CONTROL_PLANES}"
    return "control-plane" if nodeid.partition("::")[0].endswith(_WITH_CONTROL_PLANE) else nodeid


class Groups(LoadScopeScheduling):  # type: ignore[misc]
    """A scheduler that assigns whole groups to processes, the largest first."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Groups:
    """Return the scheduler for xdist, whatever ``--dist`` is."""
    return Groups(config, log)
