"""The image of the product, which is assembled once."""

import pytest

from testbed import images
from toolchain.oci import Archive


@pytest.fixture(scope="session")
def governor_image(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    """The image of the current product."""
    return images.governor(tmp_path_factory.mktemp("image"))
