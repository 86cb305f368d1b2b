"""Suggestions for a misspelt name."""

import difflib
from collections.abc import Iterable


def suggestion(word: str, known: Iterable[str], title: str) -> str:
    """Return ``did you mean NAME?`` for the closest of some names, or all of them under a title if none is close."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return f"did you mean {by_lower[close[0]]}?" if close else f"{title}: {', '.join(by_lower.values())}"
