"""``token``: create, list and revoke. Only a token's text goes to the standard output, so that it can be redirected."""

from datetime import UTC, datetime

import click

from governor.cli.commands.get import print_found
from governor.cli.connection import call_server
from governor.cli.options import connection_options
from governor.cli.output.tables import tokens_table
from governor.cli.param_types import Duration
from governor.domain.roles import Role
from governor.process.options import output_option
from governor.values.printing import Format, timestamp
from governor.wire.rest import TokenRequest


@click.group()
def token() -> None:
    """Create, list and revoke tokens for users, programs and agents."""


@token.command("create")
@click.option("--name", required=True, help="User or program; recorded in the history as the author.")
@click.option("--role", required=True, type=click.Choice([role.value for role in Role]), help="Role of the token.")
@click.option("--ttl", type=Duration(), help="Lifetime, for example 12h or 30d.  [default: until revoked]")
@connection_options()
def create(name: str, role: str, ttl: int | None) -> None:
    """Create a token for a user or a program and print it once."""
    _create(
        TokenRequest(name=name, role=Role(role), ttl_seconds=ttl),
        "it is not shown again: store it in a file that only you can read",
    )


@token.command("join")
@click.argument("runtime")
@click.option("--ttl", type=Duration(), help="Lifetime, for example 15m.  [default: decided by the server]")
@connection_options()
def join(runtime: str, ttl: int | None) -> None:
    """Create a one-time token for an agent to join as RUNTIME.

    The token is printed once.
    """
    _create(TokenRequest(runtime=runtime, ttl_seconds=ttl), "it can be used once: pass it to `governor agent`")


@token.command("list")
@output_option
@connection_options()
def list_tokens(output: Format) -> None:
    """List the tokens, without their secrets."""
    found = call_server(lambda client: client.tokens())
    print_found(found, output, "tokens", lambda: tokens_table(found, datetime.now(UTC)))


@token.command("revoke")
@click.argument("token_id", metavar="ID")
@connection_options()
def revoke(token_id: str) -> None:
    """Revoke a token and close its open connections."""
    call_server(lambda client: client.revoke_token(token_id))
    click.echo(f"token {token_id} revoked")


def _create(request: TokenRequest, advice: str) -> None:
    created = call_server(lambda client: client.create_token(request))
    click.echo(created.text)
    expiry = f"valid until {timestamp(created.token.expires)}" if created.token.expires else "valid until revoked"
    click.echo(f"token {created.token.id}, {expiry}; {advice}", err=True)
