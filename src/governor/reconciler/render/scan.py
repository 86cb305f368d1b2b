"""What the templates of a chart call, found without rendering it. Pure."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

_ACTION: Final = re.compile(rb"\{\{(.*?)\}\}", re.DOTALL)
_LITERAL: Final = re.compile(rb'"(?:\\.|[^"\\\n])*"|`[^`]*`|/\*.*?\*/', re.DOTALL)
_WORD: Final = re.compile(rb"(?<![.$\w])[A-Za-z]\w*")
_LOOKUP: Final = b"lookup"
_GENERATORS: Final = frozenset(
    (
        *(b"randAlphaNum", b"randAlpha", b"randAscii", b"randNumeric", b"randInt", b"randBytes", b"uuidv4", b"shuffle"),
        *(b"bcrypt", b"htpasswd", b"encryptAES", b"genPrivateKey", b"genCA", b"genCAWithKey", b"genSelfSignedCert"),
        *(b"genSelfSignedCertWithKey", b"genSignedCert", b"genSignedCertWithKey", b"now", b"ago", b"durationRound"),
        *(b"date", b"dateInZone", b"date_in_zone", b"htmlDate", b"htmlDateInZone"),
    )
)


class Scan(msgspec.Struct, frozen=True):
    """The templates with calls of certain functions."""

    lookups: tuple[str, ...]
    """Files that call ``lookup``."""
    generators: tuple[str, ...]
    """Files that call a function whose results differ from call to call."""


def scan(files: Mapping[str, bytes]) -> Scan:
    """Return which templates of a chart, or of its dependencies, call such functions."""
    called = {name: functions(text) for name, text in sorted(files.items()) if _is_template(name)}
    return Scan(
        tuple(name for name, found in called.items() if _LOOKUP in found),
        tuple(name for name, found in called.items() if found & _GENERATORS),
    )


def _is_template(name: str) -> bool:
    return name.startswith("templates/") or "/templates/" in name


def functions(template: bytes) -> set[bytes]:
    """Return the words in the actions of a template that can be functions: no fields, variables or literals."""
    return set(_words(_ACTION.findall(template)))


def _words(actions: Iterable[bytes]) -> Iterable[bytes]:
    for action in actions:
        yield from _WORD.findall(_LITERAL.sub(b" ", action))
