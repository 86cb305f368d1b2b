"""What an agent remembers, and how it treats files that are not as it left them."""

from pathlib import Path

import pytest

from governor.agent.storage import Intent, Journal, Storage
from governor.errors import GovernorError
from governor.wire.rest import SignedDelivery


def test_a_journal_owns_what_was_written_and_what_may_have_been() -> None:
    journal = Journal({"a": "1"})
    begun = journal.begun(Intent(2, {"b": "2"}, ("a",)))
    assert begun.files == {"a", "b"}
    assert begun.ended("now") == Journal({"b": "2"}, written="now")


def test_a_second_change_carries_along_the_files_of_one_that_was_cut_off() -> None:
    cut_off = Journal({"a": "1"}).begun(Intent(2, {"b": "2"}, ()))
    again = cut_off.begun(Intent(3, {"c": "3"}, ("b",)))
    assert again.files == {"a", "b", "c"}
    assert again.ended("now").owned == {"a": "1", "c": "3"}


def test_what_is_remembered_is_for_its_owner_only(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "state")
    storage.prepare()
    delivery = SignedDelivery("{}", "key", "signature")
    storage.save_newest(delivery)
    assert storage.newest() == delivery
    assert (storage.proven(), storage.trials()) == (None, {})
    assert {path.stat().st_mode & 0o777 for path in storage.directory.iterdir() if path.is_file()} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in storage.directory.rglob("*") if path.is_dir()} == {0o700}


def test_a_state_directory_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o755)
    with pytest.raises(GovernorError, match="chmod 700"):
        Storage(tmp_path / "state").prepare()


def test_a_broken_file_is_named_and_not_taken_for_an_absent_one(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "state")
    storage.prepare()
    (storage.directory / "journal.json").write_text('{"owned": ')
    with pytest.raises(GovernorError, match=r"journal\.json"):
        storage.journal()


def test_a_state_directory_serves_one_agent_at_a_time(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "state")
    storage.prepare()
    with storage.locked(), pytest.raises(GovernorError, match="another agent"), Storage(storage.directory).locked():
        pytest.fail("two agents hold one state directory")
    with storage.locked():
        assert storage.journal() == Journal()
