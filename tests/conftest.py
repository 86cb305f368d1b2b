"""Shared by all tests: the test bed's fixtures."""

pytest_plugins = ["testbed.pytest_plugin", "testbed.cluster.fixtures", "testbed.cri_fixtures", "testbed.distribution"]
