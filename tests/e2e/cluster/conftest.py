"""The image of the product, and what tests with a cluster of their own need."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed import images
from testbed.cluster import machine_lock
from testbed.cluster.cleanup import sweep
from testbed.cluster.cluster import LOCK_TIMEOUT_S
from testbed.cluster.snapshot import Snapshot, take_snapshot
from toolchain.oci import Archive


@pytest.fixture(scope="session")
def governor_image(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    """The image of the current product."""
    return images.governor(tmp_path_factory.mktemp("image"))


@pytest.fixture
async def before(no_cluster: None) -> Snapshot:
    """A snapshot without any cluster, after a killed one was removed."""
    with await machine_lock.acquire(print, LOCK_TIMEOUT_S) as lock:
        sweep(lock)
        return take_snapshot(Path("nowhere"))


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """A directory outside of pytest's, whose paths are too long for sockets."""
    with tempfile.TemporaryDirectory(prefix="g-", ignore_cleanup_errors=True) as name:
        yield Path(name)
