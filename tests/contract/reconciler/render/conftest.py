"""Both renderers, as one fixture for what they have in common, and each for what only it can do."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from governor.reconciler.render.helm_cli import HelmRenderer
from governor.reconciler.render.linked import Limits
from governor.reconciler.render.pool import RenderPool
from governor.reconciler.render.request import Renderer
from testbed.recipes import provide

LINKED, HELM = "linked", "helm"


@pytest.fixture(scope="session")
def programs() -> dict[str, Path]:
    return provide(["renderer", "helm"])


@pytest.fixture
async def linked(programs: dict[str, Path]) -> AsyncIterator[RenderPool]:
    async with RenderPool(str(programs["renderer"]), size=1, limits=Limits(timeout_s=60.0)) as pool:
        yield pool


@pytest.fixture
def helm(programs: dict[str, Path]) -> HelmRenderer:
    return HelmRenderer(str(programs["helm"]), Limits(timeout_s=60.0))


@pytest.fixture(params=[LINKED, HELM])
def renderer(request: pytest.FixtureRequest, linked: RenderPool, helm: HelmRenderer) -> Renderer:
    return linked if request.param == LINKED else helm
