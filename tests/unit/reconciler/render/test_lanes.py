"""Which releases are rendered apart from all others."""

import contextlib
from pathlib import Path

import pytest

from governor.errors import GovernorError, Kind
from governor.reconciler.render.lanes import Lanes
from governor.reconciler.render.linked import Limits, timed_out
from governor.reconciler.render.request import Request


def request(name: str = "a") -> Request:
    return Request(Path("/chart"), "sha256:a", name, "apps")


def is_slow(lanes: Lanes, name: str = "a", error: GovernorError | None = None) -> bool:
    """Return in which lane a release is rendered, whose rendering may end with an error."""
    found = []
    with contextlib.suppress(GovernorError), lanes.choose(request(name)) as chosen:
        found.append(chosen)
        if error is not None:
            raise error
    return found[0]


def test_a_release_that_exceeds_the_time_limit_is_slow_until_it_succeeds() -> None:
    lanes = Lanes()
    assert not is_slow(lanes, "a", timed_out(Limits()))
    assert not is_slow(lanes, "b")
    assert is_slow(lanes, "a")
    assert not is_slow(lanes, "a")


def test_other_errors_make_no_release_slow_and_no_slow_one_fast() -> None:
    lanes, other = Lanes(), GovernorError(Kind.DEADLINE, "kube-timeout", "the cluster does not answer")
    found = [is_slow(lanes, error=error) for error in (other, timed_out(Limits()), other, other)]
    assert found == [False, False, True, True]


def test_an_error_of_a_rendering_is_raised() -> None:
    with pytest.raises(GovernorError, match="not rendered within 30 s"), Lanes().choose(request()):
        raise timed_out(Limits())
