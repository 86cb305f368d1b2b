"""The renderer that is installed on this machine."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from governor.errors import GovernorError, Kind
from governor.reconciler.render import helm_cli, linked
from governor.reconciler.render.helm_cli import HelmRenderer
from governor.reconciler.render.pool import RenderPool
from governor.reconciler.render.request import Renderer


@asynccontextmanager
async def installed_renderer(size: int = 2) -> AsyncIterator[Renderer]:
    """Provide the linked renderer if its program is in the PATH, otherwise Helm's command."""
    if program := shutil.which(linked.PROGRAM):
        async with RenderPool(program, size=size) as pool:
            yield pool
    elif program := shutil.which(helm_cli.PROGRAM):
        yield HelmRenderer(program, size=size)
    else:
        message = f"neither {linked.PROGRAM} nor {helm_cli.PROGRAM} is in the PATH: install one of them"
        raise GovernorError(Kind.PRECONDITION, "renderer-missing", message)
