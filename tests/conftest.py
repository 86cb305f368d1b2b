"""Shared by all tests: fixtures, examples of a property, garbage collection, and how SIGINT is handled."""

import gc
import signal

from hypothesis import settings

pytest_plugins = [
    "testbed.distribution",
    "testbed.cpu_report",
    "testbed.pytest_plugin",
    "testbed.cluster.fixtures",
    "testbed.cri.fixtures",
    "testbed.docker.fixtures",
]

# Without a deadline: the time of an example depends on the load of the machine. `make test` uses the same examples in
# each run, so a failure on one machine is a failure on every machine; `make soak` searches with new ones.
settings.register_profile("test", max_examples=40, derandomize=True, deadline=None, print_blob=True)
settings.register_profile("soak", max_examples=1000, deadline=None, print_blob=True)
settings.load_profile("test")

# A shell makes its background jobs ignore SIGINT, and every program that a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# With Python's defaults a sixth of the processor time of unit tests is garbage collection, most of it of the tests.
gc.set_threshold(10_000)


def pytest_collection_finish() -> None:
    """Exclude modules and tests from garbage collections."""
    gc.collect()
    gc.freeze()
