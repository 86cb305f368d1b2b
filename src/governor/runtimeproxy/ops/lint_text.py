"""``lint``: its findings in words. Pure."""

from collections.abc import Iterator

from governor.runtimeproxy.ops.lint import LintReport
from governor.values.printing import one_line, table


def report_text(report: LintReport) -> str:
    """For people."""
    return "\n\n".join(_parts(report))


def _parts(report: LintReport) -> Iterator[str]:
    if report.problems:
        yield "\n".join(one_line(str(each)) for each in report.problems)
    rows = [
        (
            hook.hook,
            hook.call,
            f"{number}.",
            each.plugin,
            f"{each.order:g}",
            f"{each.timeout_s:g}s",
            each.policy,
            each.pods,
        )
        for hook in report.hooks
        for number, each in enumerate(hook.plugins, 1)
    ]
    if rows:
        yield table(("HOOK", "BY CALL", "TURN", "PLUGIN", "ORDER", "TIMEOUT", "FAILURE", "PODS"), rows)
    yield f"{one_line(report.directory)}: {_count(report.errors, 'error')}, {_count(report.warnings, 'warning')}"


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
