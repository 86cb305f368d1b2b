"""``runtime``: what a person does to one runtime, besides changing its documents."""

from typing import Any

import click

from governor.cli.commands.follow import Patience, end, follow, patience_options, say, warn
from governor.cli.connection import ask
from governor.cli.options import connection_options
from governor.cli.output.progress import Ending
from governor.process.exit_codes import DONE


@click.group()
def runtime() -> None:
    """Retry a runtime's newest delivery, or revoke its agent's key."""


@runtime.command("retry")
@click.argument("name", metavar="ID")
@patience_options
@connection_options()
def retry(name: str, **patience: Any) -> int:
    """Have a runtime try its newest delivery once more, and follow it until it is verified or failed.

    For a runtime that refused a change whose cause is gone meanwhile, such as a server that was down. A delivery that
    is verified already is not retried.
    """
    wish = Patience(**patience)
    runtime = ask(lambda client: client.retry(name))
    if not wish.quiet:
        say([f"{name}: delivery {runtime.sequence}, attempt {runtime.attempt} at revision {runtime.revision}"])
    if not wish.wait:
        return end(Ending(DONE, f"revision {runtime.revision} is tried again"), wish)
    return end(follow(runtime.revision, wish, only=name), wish)


@runtime.command("revoke")
@click.argument("name", metavar="ID")
@connection_options()
def revoke(name: str) -> None:
    """Refuse the key of a runtime's agent from now on, also on open connections.

    What the runtime runs stays as it is. Join tokens made for it and not used yet end too.
    """
    ask(lambda client: client.revoke_runtime(name))
    say([f"{name}: its agent's key is revoked"])
    warn([f"to govern it again: `governor token join {name}`, for an agent with an empty state directory"])
