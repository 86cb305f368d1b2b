"""A lock that one program holds, until it ends in whatever way."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from governor.errors import GovernorError, Kind
from governor.process.lock import exclusive

IN_USE = GovernorError(Kind.CONFLICT, "in-use", "somebody else is here")

HOLDER = """
import pathlib, sys, time
from governor.errors import GovernorError, Kind
from governor.process.lock import exclusive
with exclusive(pathlib.Path(sys.argv[1]), GovernorError(Kind.CONFLICT, "", "")):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_holder_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with exclusive(file, IN_USE), pytest.raises(GovernorError, match="somebody else"), exclusive(file, IN_USE):
        pytest.fail("two hold one lock")
    with exclusive(file, IN_USE):
        assert file.stat().st_mode & 0o777 == 0o600


def test_a_killed_holder_holds_no_longer(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(file)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(GovernorError, match="somebody else"), exclusive(file, IN_USE):
            pytest.fail("two programs hold one lock")
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with exclusive(file, IN_USE):
            pass


def test_an_error_of_the_holder_is_its_own(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError), exclusive(tmp_path / "lock", IN_USE):
        raise BlockingIOError


def test_a_place_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    place = tmp_path / "absent" / "lock"
    with pytest.raises(GovernorError, match=str(place)), exclusive(place, IN_USE):
        pytest.fail("a lock in no directory")
