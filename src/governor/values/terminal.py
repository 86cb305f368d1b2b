"""Texts from elsewhere as a terminal may be sent them. Imports nothing: programs that must stay small use it too."""


def visible(text: str) -> str:
    r"""The text with all that a terminal would obey or not show written as Python writes it: ``\x1b``, ``\u202e``."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
