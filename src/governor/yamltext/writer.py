"""Writes plain values as block-style YAML that YAML 1.1 and 1.2 parsers read alike."""

import re
from typing import Final

import yaml

from governor.yamltext.tree import Value

# Anything that starts like a number, a date or an indicator is quoted, so that no parser misreads it.
_PLAIN: Final = re.compile(r"[A-Za-z_/$][\x20-\x7e]*")
_AMBIGUOUS: Final = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
_LITERAL: Final = re.compile(r"[!-~][\n\x20-\x7e]*")


class _Dumper(yaml.CSafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: yaml.CSafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=_style(text))


def _style(text: str) -> str | None:
    if _PLAIN.fullmatch(text) and text.lower() not in _AMBIGUOUS:
        return None
    return "|" if _fits_literal_block(text) else '"'


def _fits_literal_block(text: str) -> bool:
    # Trailing spaces are invisible in a block, so such a text is quoted.
    return "\n" in text and " \n" not in text and not text.endswith(" ") and bool(_LITERAL.fullmatch(text))


_Dumper.add_representer(str, _represent_text)


def dump(value: Value) -> str:
    """Return the text of one document; keys keep their order."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=1 << 30
    )
    return text
