"""The order of semantic versions (semver.org, section 11); build metadata does not count."""

from typing import TypeAlias

Precedence: TypeAlias = tuple[tuple[int, ...], bool, tuple[tuple[bool, int, str], ...]]


def precedence(version: str) -> Precedence:
    """Return a value that sorts versions; a version that is not semantic raises ValueError."""
    core, _, pre = version.removeprefix("v").partition("+")[0].partition("-")
    numbers = tuple(int(each) for each in core.split("."))
    identifiers = tuple(_identifier(each) for each in pre.split(".")) if pre else ()
    return numbers, not pre, identifiers


def is_older(version: str, than: str) -> bool:
    """Return whether a version precedes another; False if one of them is not semantic."""
    try:
        return precedence(version) < precedence(than)
    except ValueError:
        return False


def _identifier(text: str) -> tuple[bool, int, str]:
    """Return an identifier of a pre-release: numbers precede texts."""
    return (False, int(text), "") if text.isdecimal() else (True, 0, text)
