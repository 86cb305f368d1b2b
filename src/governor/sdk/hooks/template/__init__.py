"""The template of a new plugin: files with ``@NAME@`` and ``@CLASS@`` in place of its names."""

from importlib import resources
from pathlib import Path
from typing import Final

from governor.errors import GovernorError, Kind, invalid

_FILES: Final = ("plugin.py", "test_plugin.py", "README.md")


def create(name: str, directory: Path) -> list[Path]:
    """Write a new plugin into a new directory and return its files; raise if the directory exists."""
    words = name.replace("-", "_").split("_")
    if not all(word.isascii() and word.isidentifier() for word in words):
        raise invalid("plugin-name", f"{name!r} is not a name of a plugin; use letters, digits and -")
    try:
        directory.mkdir(parents=True)
    except FileExistsError as error:
        raise GovernorError(Kind.EXISTS, "plugin-directory", f"{directory} exists; choose another directory") from error
    return [_write(directory / file, name, "".join(word.capitalize() for word in words)) for file in _FILES]


def _write(path: Path, name: str, class_name: str) -> Path:
    template = resources.files(__name__).joinpath(f"{path.name}.txt").read_text(encoding="utf-8")
    path.write_text(template.replace("@NAME@", name).replace("@CLASS@", class_name), encoding="utf-8")
    return path
