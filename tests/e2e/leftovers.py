"""Leftovers of a run: processes and temporary files."""

from pathlib import Path


def processes_below(directory: Path) -> list[str]:
    """Return the command lines of running processes that contain the directory."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = file.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(str(directory).encode() in argument for argument in arguments):
            found.append(b" ".join(arguments).decode(errors="replace"))
    return found


def temporary_files(directory: Path) -> list[str]:
    """Return the files of unfinished atomic writes."""
    return [str(path) for path in directory.rglob(".*.tmp")]
