"""Charts as files, within limits; their digests."""

import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import GovernorError, Kind
from governor.reconciler.charts import package
from governor.reconciler.charts.digests import archive_digest, digest_of, directory_digest
from governor.reconciler.charts.package import read_all, read_archive, read_directory

FILES = {"Chart.yaml": b"name: a", "templates/a.yaml": b"a: b"}


def packed(files: dict[str, bytes], *members: tarfile.TarInfo) -> bytes:
    """Return an archive with these files below the directory ``a``, and other members."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"a/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in members:
            archive.addfile(member)
    return buffer.getvalue()


def unpacked(directory: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    return directory


def member(name: str, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type = kind
    return found


def test_a_directory_and_an_archive_have_the_same_files(tmp_path: Path) -> None:
    assert read_directory(unpacked(tmp_path, FILES)) == FILES
    assert read_archive(packed(FILES, member("a/templates", tarfile.DIRTYPE)), "a.tgz") == FILES


BAD = {
    "a link": member("a/link", tarfile.SYMTYPE),
    "a hard link": member("a/link", tarfile.LNKTYPE),
    "a device": member("a/device", tarfile.CHRTYPE),
    "a file above": member("a/../../etc/passwd"),
    "an absolute path": member("/etc/passwd"),
    "a file beside the chart": member("file"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_archive_with_anything_but_files_of_the_chart_is_invalid(case: str) -> None:
    with pytest.raises(GovernorError, match=r"a\.tgz") as caught:
        read_archive(packed(FILES, BAD[case]), "a.tgz")
    assert caught.value.kind is Kind.INVALID


@given(st.binary(max_size=200) | st.integers(0, 30).map(lambda cut: packed(FILES)[:cut]))
def test_anything_that_is_no_archive_is_invalid(content: bytes) -> None:
    with pytest.raises(GovernorError) as caught:
        read_archive(content, "a.tgz")
    assert caught.value.kind is Kind.INVALID


def test_a_directory_with_a_link_is_invalid(tmp_path: Path) -> None:
    (unpacked(tmp_path, FILES) / "link").symlink_to("/etc")
    with pytest.raises(GovernorError, match="link") as caught:
        read_directory(tmp_path)
    assert caught.value.kind is Kind.INVALID


def test_a_chart_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "MAX_BYTES", 20)
    large = {"Chart.yaml": b"x" * 21}
    with pytest.raises(GovernorError, match="has more than") as caught:
        read_directory(unpacked(tmp_path, large))
    assert caught.value.kind is Kind.EXHAUSTED
    with pytest.raises(GovernorError, match="has more than"):
        read_archive(packed(large), "a.tgz")
    monkeypatch.setattr(package, "MAX_FILES", 1)
    with pytest.raises(GovernorError, match="has more than 1 files"):
        read_archive(packed({"a": b"", "b": b""}), "a.tgz")


def test_packed_dependencies_are_read_too(tmp_path: Path) -> None:
    files = {**FILES, "charts/sub-1.0.0.tgz": packed(FILES)}
    expected = {**FILES, **{f"charts/sub-1.0.0.tgz/{name}": content for name, content in FILES.items()}}
    assert read_all(unpacked(tmp_path / "chart", files)) == expected
    archive = tmp_path / "chart.tgz"
    archive.write_bytes(packed(files))
    assert read_all(archive) == expected


@given(st.dictionaries(st.text(), st.binary(), max_size=4), st.dictionaries(st.text(), st.binary(), max_size=4))
def test_the_digest_of_a_directory_depends_on_paths_and_contents_only(
    one: dict[str, bytes], other: dict[str, bytes]
) -> None:
    assert directory_digest(one) == directory_digest(dict(reversed(one.items())))
    assert (directory_digest(one) == directory_digest(other)) is (one == other)


def test_the_digest_of_a_chart_in_the_file_system(tmp_path: Path) -> None:
    chart, archive = unpacked(tmp_path / "a", FILES), tmp_path / "a.tgz"
    archive.write_bytes(packed(FILES))
    # Modules are immutable and contain digests: the same files must have this one for ever.
    assert digest_of(chart) == "sha256:9fe314815012a3387b288aabe143c2d61fe0e56752722691a466148ec6801246"
    assert directory_digest(FILES) == digest_of(chart)
    assert digest_of(archive) == archive_digest(archive.read_bytes())
    for wrong, kind in ((tmp_path / "absent", Kind.NOT_FOUND), (tmp_path, Kind.INVALID)):
        with pytest.raises(GovernorError) as caught:
            digest_of(wrong)
        assert caught.value.kind is kind
