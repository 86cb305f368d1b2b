from governor.errors import Detail, Kind, invalid
from governor.process.exit_codes import BROKEN_PIPE, DONE, EXIT_CODE, INTERRUPTED, NO, USAGE, describe


def test_every_kind_of_error_has_its_own_exit_code() -> None:
    assert set(EXIT_CODE) == set(Kind)
    assert len(set(EXIT_CODE.values())) == len(Kind)


def test_no_error_ends_like_something_else() -> None:
    assert not set(EXIT_CODE.values()) & {DONE, NO, USAGE, INTERRUPTED, BROKEN_PIPE}
    assert all(0 < code < 126 for code in EXIT_CODE.values())


def test_an_error_is_told_with_its_places() -> None:
    error = invalid("x", "two things are wrong", [Detail("first"), Detail("second")])
    assert describe(error) == ["error: two things are wrong", "first", "second"]
    assert describe(error, "look")[-1] == "next: look"


def test_an_error_does_nothing_to_a_terminal() -> None:
    error = invalid("x", "no pod \x1b[2Jweb", [Detail("a\nb\u202e")])
    assert describe(error) == ["error: no pod \\x1b[2Jweb", "a b\\u202e"]
