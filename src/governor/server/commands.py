"""The ``governor server`` command. Imports the server only when it runs."""

import click

from governor.errors import GovernorError, Kind
from governor.process.options import options
from governor.server.settings import Settings


@click.group("server", invoke_without_command=True)
@options(Settings, "server")
def server(settings: Settings) -> int | None:
    """Run the server: accept documents, send deliveries to agents, store their reports.

    The commands below do not start a server. They print a file of its data directory, for example in a pod:
    `kubectl exec governor-server-0 -- governor server admin-token`.
    """
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        context.obj = settings
        return None
    from governor.process import supervise  # noqa: PLC0415 - keep completion and help fast
    from governor.server.main import serve  # noqa: PLC0415

    return supervise.main(lambda: serve(settings))


@server.command("admin-token", short_help="Print the server's first admin token.")
@click.pass_obj
def admin_token(settings: Settings) -> None:
    """Print the admin token that the server created at its first start."""
    from governor.server.data_directory import ADMIN_TOKEN  # noqa: PLC0415

    file = settings.data_dir / ADMIN_TOKEN
    try:
        click.echo(file.read_text(encoding="utf-8").strip())
    except OSError as error:
        message = f"cannot read {file}: {error.strerror or error}; the server writes it at its first start"
        raise GovernorError(Kind.PRECONDITION, "data-dir", message) from error


@server.command("authority", short_help="Print the CA certificate, for --ca-file.")
@click.pass_obj
def authority(settings: Settings) -> None:
    """Print the certificate of the server's own CA, for `--ca-file`."""
    from governor.server.data_directory import AUTHORITY  # noqa: PLC0415
    from governor.server.identity.authority import read_authority  # noqa: PLC0415

    file = settings.data_dir / AUTHORITY
    if not file.exists():
        message = f"there is no {file}: the server creates its own CA only if tls-names is set"
        raise GovernorError(Kind.NOT_FOUND, "authority", message)
    click.echo(read_authority(file).pem(), nl=False)
