"""The command ``governor agent``; imports the program only when it runs."""

import click

from governor.agent.settings import Settings
from governor.process.options import options


@click.command("agent")
@options(Settings, "agent")
def agent(settings: Settings) -> int:
    """Run the agent of one runtime: receive its configuration, apply it, verify that it is in use."""
    from governor.agent.main import main  # noqa: PLC0415 - keeps completion and help fast

    return main(settings)
