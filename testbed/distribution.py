"""How tests are distributed to processes: those that share an expensive server run in one process, one after another.

xdist's own mark for this has no effect with this version of pytest, so the path of a test decides.
"""

import re

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

CLUSTER = "cluster"
IMAGE = "image"
API_SERVER = "api-server"
_RECONCILER, _PLATFORM, _INSTALLATION = (
    "tests/contract/reconciler/",
    "tests/contract/agent/platform/",
    "tests/contract/agent/installation/",
)
_LONGEST = (CLUSTER, _RECONCILER, API_SERVER, _PLATFORM, _INSTALLATION)
_OTHERS = ("tests/contract/", "tests/e2e/", "tests/integration/deploy/", "tests/integration/")
"""What takes longest starts first, so that no process is left with it at the end; unit tests fill the gaps."""
_ALONE = (
    "tests/e2e/test_demo.py",
    "tests/e2e/test_kill.py",
    "tests/integration/runtimeproxy/",
)
"""Each test here starts servers of its own, or uses one that the process starts once."""
_CONTAINERD = re.compile(r"tests/integration/runtimeproxy/.*\[(containerd(?:-2)?)\b")
"""Tests that share a containerd, whose recipe is their first parameter."""
_DOCKER_CLIENTS = "tests/integration/runtimeproxy/docker_clients/"
"""Tests that share a dockerd."""
_CONTROL_PLANES = (_RECONCILER, _PLATFORM, _INSTALLATION)
"""Contract tests that share another control plane than the rest: with controllers, or because they take that long."""
_OTHER_SERVERS = (
    "tests/contract/kube/test_controllers.py",
    "tests/contract/kube/test_outages.py",
    "tests/contract/test_server_api.py",
)
"""Contract tests that do not use the shared API server."""


def group_of(nodeid: str) -> str:
    """Return a test's group: the one cluster, image or API server, a shared server, its file or itself."""
    file = nodeid.partition("::")[0]
    if file.startswith("tests/e2e/cluster/"):
        return CLUSTER
    if file.startswith("tests/integration/deploy/"):
        return IMAGE
    if shared := next((each for each in _CONTROL_PLANES if file.startswith(each)), ""):
        return shared
    if file.startswith("tests/contract/"):
        return file if file in _OTHER_SERVERS else API_SERVER
    if file.startswith(_DOCKER_CLIENTS):
        return _DOCKER_CLIENTS
    if found := _CONTAINERD.match(nodeid):
        return found[1]
    return nodeid if file.startswith(_ALONE) else file


class Groups(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a whole group to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Groups:
    """Replace the scheduler, whatever ``--dist`` says; groups start in the order of collection."""
    config.option.loadscopereorder = False
    return Groups(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests by ``_LONGEST`` and ``_OTHERS``; each part keeps its order."""
    items.sort(key=lambda item: _rank(item.nodeid))


def _rank(nodeid: str) -> int:
    group = group_of(nodeid)
    if group in _LONGEST:
        return _LONGEST.index(group)
    rank = next((rank for rank, prefix in enumerate(_OTHERS) if nodeid.startswith(prefix)), len(_OTHERS))
    return len(_LONGEST) + rank
