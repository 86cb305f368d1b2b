"""The image of the current product, assembled once for all tests of this package."""

from pathlib import Path

import pytest

from tests.integration.deploy.assembly import REVISION, assemble
from toolchain.oci import Archive, read_archive


@pytest.fixture(scope="package")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    """Return the image as ``make image`` writes it, with a revision."""
    file: Path = tmp_path_factory.mktemp("image") / "governor.tar"
    assemble("--revision", REVISION, "--output", file)
    return read_archive(file)
