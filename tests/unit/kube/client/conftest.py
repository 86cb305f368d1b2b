"""Fixtures for tests of ``governor.kube.client``."""

from collections.abc import AsyncIterator

import pytest

from governor.kube.client import Transport


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    """The connections of one test."""
    async with Transport() as transport:
        yield transport
