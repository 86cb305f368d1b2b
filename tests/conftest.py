"""Shared by all tests: the test bed's fixtures."""

pytest_plugins = ["testbed.distribution", "testbed.pytest_plugin", "testbed.cluster.fixtures", "testbed.cri_fixtures"]
