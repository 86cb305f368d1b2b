"""Verified charts in the file system, by digest. An entry is complete or absent, and never changes.

A directory is copied: what is rendered is what was verified, even if the original changes meanwhile.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from governor.errors import GovernorError, Kind
from governor.reconciler.charts import archive, oci
from governor.reconciler.charts.access import Access
from governor.reconciler.charts.digests import archive_digest, check, directory_digest
from governor.reconciler.charts.package import read_archive, read_directory
from governor.reconciler.kinds.module import Chart

MAX_CHARTS: Final = 200
_ARCHIVE: Final = "chart.tgz"
_DIRECTORY: Final = "chart"
_SCRATCH: Final = ".new-"


class ChartCache:
    """The charts below one directory, which only this object writes to."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._storing = asyncio.Lock()

    async def provide(self, chart: Chart, access: Access = Access()) -> Path:  # noqa: B008 - frozen
        """Return the path of a chart with the digest that its Module requires; fetch it first if it is not there."""
        entry = self._root / chart.digest.replace(":", "-")
        if known := await asyncio.to_thread(_known, entry):
            return known
        if chart.directory is not None:
            files = await asyncio.to_thread(read_directory, Path(chart.directory))
            check(chart.digest, directory_digest(files), chart.directory)
        else:
            files = {_ARCHIVE: await _fetch(chart, access)}
        async with self._storing:
            try:
                return await asyncio.to_thread(self._store, entry, files)
            except OSError as error:
                message = (
                    f"the chart cannot be stored in {self._root}: {error.strerror}; free space, or set chart-cache"
                )
                raise GovernorError(Kind.EXHAUSTED, "chart-not-stored", message) from error

    def _store(self, entry: Path, files: Mapping[str, bytes]) -> Path:
        """Write an entry beside its final place, rename it, and remove the entries in excess."""
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        scratch = Path(tempfile.mkdtemp(dir=self._root, prefix=_SCRATCH))
        try:
            directory = scratch if _ARCHIVE in files else scratch / _DIRECTORY
            for name, content in files.items():
                file = directory / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
            _rename(scratch, entry)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        self._remove_excess()
        return _path(entry)

    def _remove_excess(self) -> None:
        """Remove what killed programs have left, and the charts that were used least recently."""
        entries = sorted(self._root.iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)
        for number, each in enumerate(entries):
            if number >= MAX_CHARTS or each.name.startswith(_SCRATCH):
                shutil.rmtree(each, ignore_errors=True)


def _known(entry: Path) -> Path | None:
    if not entry.exists():
        return None
    os.utime(entry)
    return _path(entry)


def _path(entry: Path) -> Path:
    archive = entry / _ARCHIVE
    return archive if archive.exists() else entry / _DIRECTORY


def _rename(scratch: Path, entry: Path) -> None:
    try:
        scratch.rename(entry)
    except OSError:
        if not entry.exists():  # otherwise it was stored at the same time, with the same content
            raise


async def _fetch(chart: Chart, access: Access) -> bytes:
    """Return the verified archive of a chart."""
    place = str(chart.archive or chart.oci or (chart.config_map and f"ConfigMap {chart.config_map.name}"))
    if chart.oci is not None:
        content = await oci.fetch(place, chart.digest, access)
    else:
        content = access.packed if chart.config_map is not None else await archive.fetch(place, access)
        check(chart.digest, archive_digest(content), place)
    await asyncio.to_thread(read_archive, content, place)
    return content
