"""The state directory of the local platform: journal, file modes, corrupt files, locking."""

from pathlib import Path

import msgspec
import pytest

from governor.agent.platforms.local.storage import Intent, Journal, Storage
from governor.errors import GovernorError


def test_a_journal_owns_the_files_of_a_change_in_progress() -> None:
    journal = Journal(frozenset("a"))
    begun = journal.begin(Intent(2, ("b",), ("a",)))
    assert begun.files == {"a", "b"}
    assert begun.complete("now", {}) == Journal(frozenset("b"), written="now")


def test_a_journal_still_owns_the_files_of_an_interrupted_change() -> None:
    interrupted = Journal(frozenset("a")).begin(Intent(2, ("b",), ()))
    again = interrupted.begin(Intent(3, ("c",), ("b",)))
    assert again.files == {"a", "b", "c"}
    assert again.complete("now", {}).owned == {"a", "c"}


def test_an_interrupted_removal_keeps_the_digest_of_what_it_removed() -> None:
    begun = Journal(frozenset("a"), removed={"x": "sha256:2"}).begin(Intent(2, (), ("a",), removed={"a": "sha256:1"}))
    assert begun.removed_digests == {"x": "sha256:2", "a": "sha256:1"}
    assert begun.complete("now", {}).removed == {"a": "sha256:1"}


def test_a_journal_keeps_when_drift_ended_and_the_stamps_of_the_agents_files() -> None:
    written = Journal(frozenset("ab"), digest="sha256:0", stamps={"a": "1", "b": "1"})
    drifted = written.with_drift({"a": "2"}, "12")
    assert drifted == msgspec.structs.replace(
        written, drifted=frozenset("a"), written="12", stamps={"a": "2", "b": "1"}
    )
    begun = drifted.begin(Intent(2, ("a",), ("b",)))
    assert begun == Journal(frozenset("ab"), begun.intent, "12", drifted=frozenset("a"))
    repaired = begun.complete("13", {"a": "3", "b": "", "c": "1"})
    assert repaired == Journal(frozenset("a"), written="13", drift_ended="13", stamps={"a": "3"})
    again = repaired.begin(Intent(3, ("a",), ())).complete("14", {})
    assert (again.written, again.drift_ended) == ("14", "13")


def test_a_stored_journal_is_read_back(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "state")
    storage.prepare()
    intent = Intent(2, ("b", "c"), ("a",), "sha256:0", {"a": "sha256:1"})
    drift = Journal(drifted=frozenset("b"), drift_ended="11", stamps={"a": "1 2"})
    journal = msgspec.structs.replace(
        drift, owned=frozenset("ab"), intent=intent, written="12", removed={"x": "sha256:2"}
    )
    storage.save_journal(journal)
    assert storage.journal() == journal


def test_the_journal_of_an_older_agent_is_read_without_its_digests(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "state")
    storage.prepare()
    (storage.directory / "journal.json").write_text(
        '{"owned":{"a":"sha256:1"},"intent":{"sequence":2,"writes":{"b":"sha256:2"},"removals":["a"]},"written":"12"}'
    )
    assert storage.journal() == Journal(frozenset("a"), Intent(2, ("b",), ("a",)), "12")


def test_state_files_and_directories_are_private(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "state")
    storage.prepare()
    storage.save_journal(Journal())
    assert {path.stat().st_mode & 0o777 for path in storage.directory.iterdir() if path.is_file()} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in storage.directory.rglob("*") if path.is_dir()} == {0o700}


def test_a_state_directory_that_others_can_access_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o755)
    with pytest.raises(GovernorError, match="chmod 700"):
        Storage(tmp_path / "state").prepare()


def test_a_corrupt_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "state")
    storage.prepare()
    (storage.directory / "journal.json").write_text('{"owned": ')
    with pytest.raises(GovernorError, match=r"journal\.json"):
        storage.journal()


def test_a_state_directory_serves_one_agent_at_a_time(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "state")
    storage.prepare()
    with storage.locked(), pytest.raises(GovernorError, match="another agent"), Storage(storage.directory).locked():
        pytest.fail("two agents locked one state directory")
    with storage.locked():
        assert storage.journal() == Journal()
