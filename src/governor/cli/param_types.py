"""Click parameter types that several commands share: durations and document names."""

import re
from typing import Final

import click

from governor.domain.documents import DOCUMENT_TYPES, DocumentRef

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION: Final = re.compile(r"([1-9][0-9]{0,6})([smhd])")


class Duration(click.ParamType[int]):
    """``90s``, ``15m``, ``12h`` or ``30d``, in seconds."""

    name = "duration"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a number and its unit."""
        if isinstance(value, int):
            return value
        match = _DURATION.fullmatch(value)
        if match is None:
            self.fail(f"{value!r} is not a duration; write for example 90s, 15m, 12h or 30d", param, ctx)
        return int(match[1]) * _SECONDS[match[2]]


class DocumentName(click.ParamType[DocumentRef]):
    """``KIND/NAME``, for example ``Profile/orders``; the kind is case-insensitive."""

    name = "KIND/NAME"

    def convert(
        self, value: str | DocumentRef, param: click.Parameter | None, ctx: click.Context | None
    ) -> DocumentRef:
        """Parse kind and name."""
        if isinstance(value, DocumentRef):
            return value
        kind, _, name = value.partition("/")
        known = {each.lower(): each for each in DOCUMENT_TYPES}
        if kind.lower() not in known or not name or "/" in name:
            kinds = ", ".join(DOCUMENT_TYPES)
            reason = f"{value!r} is not a document name; write KIND/NAME, for example Profile/orders; kinds: {kinds}"
            self.fail(reason, param, ctx)
        return DocumentRef(known[kind.lower()], name)
