"""The command line run in this process, for tests of what it prints rather than of its process."""

import asyncio
import io
from contextlib import redirect_stderr, redirect_stdout

from governor.cli.main import run
from testbed.commands import Outcome
from testbed.cri.runtime_proxy import RuntimeProxy


async def governor(*arguments: str) -> Outcome:
    """Run a command line of ``governor`` to its end; only one at a time."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = await asyncio.to_thread(run, arguments)
    return Outcome(code, out.getvalue(), err.getvalue())


async def runtime_proxy(proxy: RuntimeProxy, *words: str) -> Outcome:
    """Run a subcommand of ``governor runtime-proxy`` with the flags of a running proxy."""
    arguments = proxy.command()
    return await governor(*arguments[arguments.index("runtime-proxy") :], *words)
