"""Digests of charts. Pure but for reading the files."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from governor.errors import GovernorError, Kind, invalid
from governor.reconciler.charts.package import read_archive, read_directory


def directory_digest(files: Mapping[str, bytes]) -> str:
    """Return the digest of an unpacked chart: of the paths and contents of its files, in the order of the paths."""
    total = hashlib.sha256()
    for name in sorted(files):
        path = name.encode()
        total.update(f"{len(path)}:{len(files[name])}:".encode())
        total.update(path)
        total.update(files[name])
    return f"sha256:{total.hexdigest()}"


def archive_digest(content: bytes) -> str:
    """Return the digest of a packed chart: that of the archive itself."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def digest_of(chart: Path) -> str:
    """Return the digest of a chart in the file system, for ``spec.chart.digest`` of a Module. Blocking."""
    if chart.is_dir():
        files = read_directory(chart)
        if "Chart.yaml" not in files:
            raise invalid("not-a-chart", f"{chart} has no Chart.yaml: name the directory of a chart")
        return directory_digest(files)
    try:
        content = chart.read_bytes()
    except OSError as error:
        message = f"the chart {chart} cannot be read: {error.strerror or error}"
        raise GovernorError(Kind.NOT_FOUND, "chart-unreadable", message) from error
    read_archive(content, str(chart))
    return archive_digest(content)


def check(expected: str, actual: str, place: str) -> None:
    """Raise unless a chart has the digest that its Module names."""
    if actual != expected:
        message = f"{place} has the digest {actual}, but the Module requires {expected}: restore the chart, or create a"
        raise invalid("chart-digest", f"{message} Module for another version")
