"""Bounded YAML text to plain JSON values that know their lines, and back.

Reads the core schema of YAML 1.2 (so JSON text too), plus anchors and merge keys. Every failure of ``load`` is a
GovernorError that names file, line and path and never repeats a value, because a value may be a password.
What the values mean is decided elsewhere, and so is which file is read or written.
"""

from governor.yamltext.reader import Limits, Parsed, load, path_text
from governor.yamltext.scalars import Scalar
from governor.yamltext.tree import Path, Value
from governor.yamltext.writer import dump

__all__ = ["Limits", "Parsed", "Path", "Scalar", "Value", "dump", "load", "path_text"]
