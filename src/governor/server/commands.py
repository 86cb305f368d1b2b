"""The command ``governor server``. The server itself is imported only when it runs."""

import click

from governor.process.options import options
from governor.server.settings import Settings


@click.command("server")
@options(Settings, "server")
def server(settings: Settings) -> int:
    """Run the server: documents in, deliveries out, reports back."""
    from governor.process import supervise  # noqa: PLC0415 - completion and help must be quick
    from governor.server.main import serve  # noqa: PLC0415

    return supervise.main(lambda: serve(settings))
