"""Shared by all tests: the test bed's fixtures, and that no example is timed."""

from hypothesis import settings

pytest_plugins = ["testbed.distribution", "testbed.pytest_plugin", "testbed.cluster.fixtures", "testbed.cri_fixtures"]

# How long an example takes says more about what else the machine does than about what is tested.
settings.register_profile("governor", deadline=None)
settings.load_profile("governor")
