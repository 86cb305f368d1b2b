"""The command ``governor server``. The server itself is imported only when it runs."""

import click

from governor.errors import GovernorError, Kind
from governor.process.options import options
from governor.server.settings import Settings


@click.group("server", invoke_without_command=True)
@options(Settings, "server")
def server(settings: Settings) -> int | None:
    """Run the server: documents in, deliveries out, reports back.

    With one of the commands below it runs nothing and prints something of its data directory, for those who reach that
    only through the program: `kubectl exec governor-server-0 -- governor server admin-token`.
    """
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        context.obj = settings
        return None
    from governor.process import supervise  # noqa: PLC0415 - completion and help must be quick
    from governor.server.main import serve  # noqa: PLC0415

    return supervise.main(lambda: serve(settings))


@server.command("admin-token")
@click.pass_obj
def admin_token(settings: Settings) -> None:
    """Print the token that the server made for its first administrator."""
    from governor.server.data_directory import ADMIN_TOKEN  # noqa: PLC0415

    file = settings.data_dir / ADMIN_TOKEN
    try:
        click.echo(file.read_text(encoding="utf-8").strip())
    except OSError as error:
        message = f"cannot read {file}: {error.strerror or error}; the server writes it at its first start"
        raise GovernorError(Kind.PRECONDITION, "data-dir", message) from error


@server.command("authority")
@click.pass_obj
def authority(settings: Settings) -> None:
    """Print the certificate of the server's own authority, for `--ca-file`."""
    from governor.server.data_directory import AUTHORITY  # noqa: PLC0415
    from governor.server.identity.authority import read_authority  # noqa: PLC0415

    file = settings.data_dir / AUTHORITY
    if not file.exists():
        message = f"there is no {file}: a server has an authority of its own if it is started with tls-names"
        raise GovernorError(Kind.NOT_FOUND, "authority", message)
    click.echo(read_authority(file).pem(), nl=False)
