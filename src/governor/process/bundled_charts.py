"""The Helm charts that are distributed with this package."""

from pathlib import Path

import governor


def bundled_chart(name: str) -> Path:
    """Return the directory of a chart: inside the installed package, or beside the sources in a clone."""
    package = Path(governor.__file__).parent
    installed = package / "charts" / name
    return installed if installed.is_dir() else package.parents[1] / "charts" / name
