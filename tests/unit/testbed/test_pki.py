"""Private keys of the test bed are readable by their owner only."""

from pathlib import Path

from testbed.kube.pki import Authority, put


def test_files_with_keys_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    certificate, key = Authority().issue("ann").put(tmp_path / "new", "ann")
    assert {each.stat().st_mode & 0o777 for each in (certificate, key)} == {0o600}
    assert put(key, b"other") == key
    assert key.read_bytes() == b"other"
    assert sorted(each.name for each in key.parent.iterdir()) == ["ann.crt", "ann.key"]
