from governor.errors import Detail, Kind, invalid
from governor.process.exit_codes import BROKEN_PIPE, EXIT_CODE, INTERRUPTED, NEGATIVE, SUCCESS, USAGE, describe


def test_every_kind_of_error_has_its_own_exit_code() -> None:
    assert set(EXIT_CODE) == set(Kind)
    assert len(set(EXIT_CODE.values())) == len(Kind)


def test_the_exit_codes_of_errors_are_distinct_from_all_others() -> None:
    assert not set(EXIT_CODE.values()) & {SUCCESS, NEGATIVE, USAGE, INTERRUPTED, BROKEN_PIPE}
    assert all(0 < code < 126 for code in EXIT_CODE.values())


def test_an_error_is_printed_with_its_details() -> None:
    error = invalid("x", "two things are wrong", [Detail("first"), Detail("second")])
    assert describe(error) == ["error: two things are wrong", "first", "second"]
    assert describe(error, "retry")[-1] == "next: retry"


def test_control_characters_in_an_error_are_escaped() -> None:
    error = invalid("x", "no pod \x1b[2Jweb", [Detail("a\nb\u202e")])
    assert describe(error) == ["error: no pod \\x1b[2Jweb", "a b\\u202e"]
