"""Plain values to block-style YAML text that readers of YAML 1.1 and 1.2 understand alike."""

import re
from typing import Final

import yaml

from governor.yamltext.tree import Value

# Anything that begins like a number, a date or an indicator is quoted: no reader can take it for something else.
_PLAIN: Final = re.compile(r"[A-Za-z_/$][\x20-\x7e]*")
_WORDS: Final = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
_LINES: Final = re.compile(r"[!-~][\n\x20-\x7e]*")


class _Dumper(yaml.CSafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: yaml.CSafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=_style(text))


def _style(text: str) -> str | None:
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return None
    return "|" if _reads_as_lines(text) else '"'


def _reads_as_lines(text: str) -> bool:
    # Spaces before a line break are lost on people, so they stay visible inside quotes.
    return "\n" in text and " \n" not in text and not text.endswith(" ") and bool(_LINES.fullmatch(text))


_Dumper.add_representer(str, _represent_text)


def dump(value: Value) -> str:
    """The text of one document, keys in their order."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=1 << 30
    )
    return text
