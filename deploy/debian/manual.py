"""The man page, from the reference of the command line. Pure."""

import re
from collections.abc import Iterator
from typing import Final

COMMAND: Final = "governor runtime-proxy"
_HEADING: Final = re.compile(r"^## (?P<title>.+)$", re.MULTILINE)
_CODE: Final = re.compile(r"`([^`]*)`")


def man_page(reference: str, version: str) -> str:
    """Return the page of the runtime proxy and its subcommands, in roff."""
    pieces = _HEADING.split(reference)
    sections = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    own = sections.pop(COMMAND)
    summary = own.strip().partition("\n")[0].rstrip(".")
    lines = [
        f'.TH GOVERNOR-RUNTIME-PROXY 8 "" "Runtime Governor {version}"',
        ".SH NAME",
        f"governor-runtime-proxy \\- {_text(summary)}",
        ".SH DESCRIPTION",
        *_body(own),
    ]
    for title, body in sections.items():
        if title.startswith(f"{COMMAND} "):
            lines += [f".SH {title.removeprefix(COMMAND).strip().upper()}", *_body(body)]
    return "\n".join(lines) + "\n"


def _body(markdown: str) -> Iterator[str]:
    """Yield the lines of a section: paragraphs, code and options."""
    for block in markdown.strip().split("\n\n"):
        if block.startswith("```"):
            yield from (".PP", ".nf", *(_text(line) for line in block.strip("`\n").splitlines()), ".fi")
        elif block.startswith("- "):
            for item in block.removeprefix("- ").split("\n- "):
                option, _, text = item.partition(": ")
                yield from (".TP", f"\\fB{_text(option)}\\fR", _text(" ".join(text.split())))
        else:
            yield from (".PP", _text(" ".join(block.split())))


def _text(markdown: str) -> str:
    """Return a text in roff, in which a dot or quote that begins a line would be a request."""
    plain = _CODE.sub(r"\1", markdown).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{plain}" if plain.startswith((".", "'")) else plain
