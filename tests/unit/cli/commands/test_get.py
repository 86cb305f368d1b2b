"""Lists that ``get`` and ``token list`` print."""

import pytest

from governor.cli.commands.get import print_found
from governor.values.printing import Format


@pytest.mark.parametrize("plural", ["runtimes", "profiles", "revisions", "tokens"])
def test_an_empty_list_is_reported_on_stderr(plural: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_found((), "table", plural, lambda: "NAME")
    assert capsys.readouterr() == ("", f"No {plural} found.\n")


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_an_empty_list_stays_a_list_for_programs(output: Format, capsys: pytest.CaptureFixture[str]) -> None:
    print_found((), output, "runtimes", lambda: "NAME")
    assert capsys.readouterr() == ("[]\n", "")


def test_a_list_is_printed_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_found(("a",), "table", "runtimes", lambda: "NAME\na")
    assert capsys.readouterr() == ("NAME\na\n", "")


def test_one_item_is_printed_without_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    print_found((1,), "json", "revisions", lambda: "", one=True)
    assert capsys.readouterr() == ("1\n", "")
