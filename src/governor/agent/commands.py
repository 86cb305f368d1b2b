"""The command ``governor agent``. The program itself is imported only when it runs."""

import click

from governor.agent.settings import Settings
from governor.process.options import options


@click.command("agent")
@options(Settings, "agent")
def agent(settings: Settings) -> int:
    """Run the agent of one runtime: take its configuration from the server, apply it, prove that it is in use."""
    from governor.agent.main import main  # noqa: PLC0415 - completion and help must not pay for the program

    return main(settings)
