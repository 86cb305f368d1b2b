"""Shared by all tests: the test bed's fixtures, that no example is timed, that programs hear of interrupts."""

import signal

from hypothesis import settings

pytest_plugins = [
    "testbed.distribution",
    "testbed.cpu_report",
    "testbed.pytest_plugin",
    "testbed.cluster.fixtures",
    "testbed.cri.fixtures",
]

# How long an example takes says more about what else the machine does than about what is tested.
settings.register_profile("governor", deadline=None)
settings.load_profile("governor")

# A shell lets what it runs in the background ignore interrupts, and all programs that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
