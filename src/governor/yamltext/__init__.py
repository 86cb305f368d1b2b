"""Reading bounded YAML text as plain JSON values with line numbers, and writing it.

``load`` supports the core schema of YAML 1.2 (hence JSON too), anchors and merge keys. Every failure is a GovernorError
that names file, line and path but never a value, which may be a password. No file is read or written here. Decision
0014 gives the reasons for building on PyYAML's C parser.
"""

from governor.yamltext.reader import Limits, Parsed, load, path_text
from governor.yamltext.scalars import Scalar
from governor.yamltext.tree import Path, Value
from governor.yamltext.writer import dump

__all__ = ["Limits", "Parsed", "Path", "Scalar", "Value", "dump", "load", "path_text"]
