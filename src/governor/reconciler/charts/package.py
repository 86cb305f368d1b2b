"""The files of a chart, read within limits from a directory or an archive. Blocking; no link is followed."""

import gzip
import io
import stat
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from governor.errors import GovernorError, Kind, invalid

MAX_FILES: Final = 10_000
MAX_BYTES: Final = 100 * 1024 * 1024
"""The limit of Helm, too."""
_ARCHIVES: Final = (".tgz", ".tar.gz")
_MAX_DEPTH: Final = 8
_HEADER_BYTES: Final = 1024


class _Budget:
    """How much of the limits is left."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._files = MAX_FILES
        self._bytes = MAX_BYTES

    def take(self, size: int) -> None:
        """Count one file; raise if the chart is too large."""
        self._files -= 1
        self._bytes -= size
        if self._files < 0 or self._bytes < 0:
            raise _too_large(self._place)


def _too_large(place: str) -> GovernorError:
    limits = f"{MAX_FILES} files and {MAX_BYTES // 1024 // 1024} MiB"
    return GovernorError(Kind.EXHAUSTED, "chart-too-large", f"{place} has more than {limits}: make the chart smaller")


def read_directory(directory: Path) -> dict[str, bytes]:
    """Return the content of each file below a directory by its relative path."""
    budget = _Budget(str(directory))
    try:
        return {path.relative_to(directory).as_posix(): _read(path, size, budget) for path, size in _walk(directory)}
    except OSError as error:
        message = f"the chart {directory} cannot be read: {error.strerror or error}"
        raise GovernorError(Kind.NOT_FOUND, "chart-unreadable", message) from error


def _walk(directory: Path) -> Iterator[tuple[Path, int]]:
    for path in sorted(directory.iterdir()):
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(path)
        elif stat.S_ISREG(status.st_mode):
            yield path, status.st_size
        else:
            raise invalid("chart-link", f"{path} is a link or a special file, which a chart must not contain")


def _read(path: Path, size: int, budget: _Budget) -> bytes:
    budget.take(size)
    with path.open("rb") as file:
        content = file.read(size + 1)
    if len(content) != size:
        raise GovernorError(Kind.CONFLICT, "chart-changed", f"{path} changes while it is read: try again")
    return content


def read_archive(content: bytes, place: str) -> dict[str, bytes]:
    """Return the content of each file of a packed chart by its path below the chart's own directory."""
    found = _unpack(content, place)
    if "Chart.yaml" not in found:
        raise invalid("not-a-chart", f"{place} has no Chart.yaml: it is not a packed chart")
    return found


def _unpack(content: bytes, place: str) -> dict[str, bytes]:
    budget, found = _Budget(place), dict[str, bytes]()
    try:
        with tarfile.open(fileobj=io.BytesIO(_decompressed(content, place)), mode="r:") as archive:
            for member in archive:
                if member.isdir():
                    continue
                name = _name(member, place)
                budget.take(member.size)
                file = archive.extractfile(member)
                assert file is not None  # noqa: S101 - ``_name`` admits regular files only
                found[name] = file.read()
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise invalid("chart-archive", f"{place} is not a packed chart (a gzipped tar archive)") from error
    return found


def _decompressed(content: bytes, place: str) -> bytes:
    """Return the tar archive; it is bounded as a whole, because its headers can be of any size, too."""
    limit = MAX_BYTES + MAX_FILES * _HEADER_BYTES
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        found = file.read(limit + 1)
    if len(found) > limit:
        raise _too_large(place)
    return found


def _name(member: tarfile.TarInfo, place: str) -> str:
    path = PurePosixPath(member.name)
    if not member.isreg():
        raise invalid(
            "chart-link", f"{place}: {member.name} is a link or a special file, which a chart must not contain"
        )
    is_below = len(path.parts) > 1
    if path.is_absolute() or ".." in path.parts or not is_below:
        raise invalid("chart-archive", f"{place}: {member.name} is not below the directory of the chart")
    return PurePosixPath(*path.parts[1:]).as_posix()


def pack(files: Mapping[str, bytes], name: str) -> bytes:
    """Return the packed chart of files that ``read_directory`` has read; the same files give the same archive."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:", format=tarfile.PAX_FORMAT) as tar:
        for path, content in sorted(files.items()):
            member = tarfile.TarInfo(f"{name}/{path}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(archive.getvalue(), mtime=0)


def read_all(chart: Path) -> dict[str, bytes]:
    """Return the files of a chart, including those of packed dependencies in its directory ``charts``."""
    files = read_directory(chart) if chart.is_dir() else read_archive(chart.read_bytes(), chart.name)
    return _with_dependencies(files, _MAX_DEPTH)


def _with_dependencies(files: dict[str, bytes], depth: int) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name, content in files.items():
        if depth and "charts" in PurePosixPath(name).parts[:-1] and name.endswith(_ARCHIVES):
            packed = _with_dependencies(read_archive(content, name), depth - 1)
            found |= {f"{name}/{inner}": text for inner, text in packed.items()}
        else:
            found[name] = content
    return found
