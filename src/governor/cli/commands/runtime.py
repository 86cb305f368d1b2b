"""``runtime``: operations on one runtime that change no documents."""

from typing import Any

import click

from governor.cli.commands.follow import WaitOptions, follow, print_lines, print_result, wait_options, warn
from governor.cli.connection import call_server
from governor.cli.options import connection_options
from governor.cli.output.progress import CommandResult
from governor.process.exit_codes import SUCCESS


@click.group()
def runtime() -> None:
    """Retry a runtime's newest delivery, or revoke its agent's key."""


@runtime.command("retry")
@click.argument("name", metavar="ID")
@wait_options
@connection_options()
def retry(name: str, **options: Any) -> int:
    """Retry a runtime's newest delivery.

    Waits until the delivery is verified or has failed. Use it when the cause of a failure is gone, for example after a
    database is up again. A verified delivery is not retried.
    """
    wait = WaitOptions(**options)
    runtime = call_server(lambda client: client.retry(name))
    if not wait.quiet:
        print_lines([f"{name}: delivery {runtime.sequence}, attempt {runtime.attempt} at revision {runtime.revision}"])
    if not wait.wait:
        return print_result(CommandResult(SUCCESS, f"revision {runtime.revision}: retry accepted"), wait)
    return print_result(follow(runtime.revision, wait, only=name), wait)


@runtime.command("revoke")
@click.argument("name", metavar="ID")
@connection_options()
def revoke(name: str) -> None:
    """Revoke the key of a runtime's agent.

    Open connections of the agent are closed, and unused join tokens of the runtime are revoked as well. The runtime
    keeps what it runs.
    """
    call_server(lambda client: client.revoke_runtime(name))
    print_lines([f"{name}: agent key revoked"])
    warn([f"to govern it again: `governor token join {name}`, then restart its agent with that token"])
