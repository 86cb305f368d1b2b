"""Checks of a program that has others for a while."""

from governor.process.telemetry.health import Checks


def test_included_checks_are_run_until_the_block_ends() -> None:
    program, term = Checks(), Checks()
    program.ready("lifecycle", lambda: "")
    term.ready("cluster", lambda: "not synced")
    term.alive("loop", lambda: "hangs")
    with program.including(term):
        assert program.readiness().failing == {"cluster": "not synced", "loop": "hangs"}
        assert program.liveness().failing == {"loop": "hangs"}
    assert program.readiness().ok
    assert program.liveness().ok
