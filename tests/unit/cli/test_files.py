import io
import sys
from pathlib import Path

import pytest

from governor.cli.files import read
from governor.errors import GovernorError, Kind

ONE = "kind: Profile\nmetadata: {name: one}\n"
TWO = "kind: Profile\nmetadata: {name: two}\n"


@pytest.fixture(autouse=True)
def in_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(**files: str) -> None:
    for name, text in files.items():
        path = Path(name.replace("__", "/").replace("_", "."))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def rejection(*sources: str) -> GovernorError:
    with pytest.raises(GovernorError) as raised:
        read(sources)
    assert raised.value.kind is Kind.INVALID
    return raised.value


def test_a_directory_is_read_recursively_in_order_without_hidden_files() -> None:
    write(d__b_yaml=ONE, d__a__z_yml=TWO, d__c_json='{"kind": "Runtime"}', d__readme_md="# no")
    Path("d/.git").mkdir()
    Path("d/.git/x.yaml").write_text("hidden: true")
    Path("d/.swap.yaml").write_text("hidden: true")
    assert [item.source for item in read(["d"])] == ["d/a/z.yml", "d/b.yaml", "d/c.json"]


def test_files_of_a_mounted_config_map_are_read_once() -> None:
    write(mount__data__a_yaml=ONE)
    Path("mount/data").rename("mount/..data")
    Path("mount/a.yaml").symlink_to("..data/a.yaml")
    assert [item.source for item in read(["mount"])] == ["mount/a.yaml"]


def test_a_file_named_twice_is_read_once() -> None:
    write(a_yaml=ONE)
    assert len(read(["a.yaml", "a.yaml"])) == 1


def test_standard_input_is_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{ONE}---\n{TWO}".encode())))
    assert [(item.source, item.line) for item in read(["-"])] == [("stdin", 1), ("stdin", 4)]


def test_all_problems_are_reported_at_once() -> None:
    write(a_yaml="a: [1\n", b_yaml="a: 1\na: 2\n", c_yaml="- no map\n", d_yaml=ONE)
    error = rejection("a.yaml", "b.yaml", "c.yaml", "d.yaml", "missing.yaml")
    assert [(each.file, each.line) for each in error.details] == [
        ("a.yaml", 2),
        ("b.yaml", 2),
        ("missing.yaml", 0),
        ("c.yaml", 1),
    ]


def test_a_duplicate_document_is_reported_with_both_places() -> None:
    write(a_yaml=f"{TWO}---\n{ONE}", b_yaml=ONE)
    (detail,) = rejection("a.yaml", "b.yaml").details
    assert (detail.file, detail.line, detail.document) == ("b.yaml", 1, "Profile/one")
    assert "a.yaml:4" in detail.reason


def test_documents_without_a_name_are_left_to_the_server() -> None:
    write(a_yaml="kind: Profile\n---\nkind: Profile\n---\nmetadata: 3\n")
    assert len(read(["a.yaml"])) == 3


def test_an_alias_bomb_is_rejected_before_it_expands() -> None:
    levels = "\n".join(f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]" for n in range(9))
    write(bomb_yaml=f"a0: &a0 [x]\n{levels}\n")
    (detail,) = rejection("bomb.yaml").details
    assert detail.file == "bomb.yaml"
    assert detail.line > 1


def test_a_document_of_two_megabytes_is_rejected() -> None:
    write(large_yaml=f"{ONE}data: {'x' * 2_000_000}\n")
    (detail,) = rejection("large.yaml").details
    assert "limit" in detail.reason


def test_an_endless_file_is_not_read_to_its_end() -> None:
    (detail,) = rejection("/dev/zero").details
    assert "limit" in detail.reason


@pytest.mark.parametrize("text", ["", "---\n---\n", "# only a comment\n"])
def test_a_file_without_documents_is_rejected(text: str) -> None:
    write(a_yaml=text)
    assert "a.yaml" in rejection("a.yaml").message
