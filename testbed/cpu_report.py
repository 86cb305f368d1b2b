"""``--cpu``: the processor time of the tests, by directory, with that of all processes that they started and ended."""

import collections
import resource
from collections.abc import Generator

import pytest

_STARTED = pytest.StashKey[float]()
_PROPERTY = "cpu_s"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--cpu", action="store_true", help="show the processor time of the tests by directory")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note the processor time before the first fixture."""
    item.stash[_STARTED] = _cpu_s()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the processor time to the last report of a test, which xdist carries to the controller."""
    report = yield
    if call.when == "teardown":
        report.user_properties.append((_PROPERTY, _cpu_s() - item.stash[_STARTED]))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the sum of each directory of tests."""
    if not config.getoption("--cpu"):
        return
    sums: collections.Counter[str] = collections.Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", []):
                if name == _PROPERTY:
                    sums["/".join(report.nodeid.split("/")[:2])] += value
    terminalreporter.section("processor time")
    for directory, seconds in sums.most_common():
        terminalreporter.write_line(f"{seconds:8.1f} s  {directory}")


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
