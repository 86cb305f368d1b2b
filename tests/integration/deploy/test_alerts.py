"""The alerts of the reconciler, loaded by the operator of Prometheus and by Prometheus itself."""

import subprocess

import pytest

from testbed.recipes import provide
from toolchain.repository import REPOSITORY

ALERTS = (REPOSITORY / "deploy" / "monitoring" / "reconciler-alerts.yaml").read_text(encoding="utf-8")


def problems(text: str) -> str:
    program = provide(["alert-check"])["alert-check"]
    ended = subprocess.run([program], input=text, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1 if ended.stdout else 0, "")
    return ended.stdout


def test_prometheus_loads_all_alerts() -> None:
    assert problems(ALERTS) == ""


@pytest.mark.parametrize(
    ("original", "mistake", "problem"),
    [
        ("for: 5m", "fro: 5m", 'unknown field "fro"'),
        ("for: 5m", "for: 5x", 'unknown unit "x" in duration'),
        (" < 1\n", " < < 1\n", "could not parse expression"),
        ("{{ $value }}", "{{ $valu }}", 'undefined variable "$valu"'),
    ],
)
def test_mistakes_in_alerts_are_found(original: str, mistake: str, problem: str) -> None:
    assert original in ALERTS
    assert problem in problems(ALERTS.replace(original, mistake, 1))
