"""``token``: make, list and revoke. A token's text goes to standard output alone, so that it can be put into a file."""

from datetime import UTC, datetime

import click

from governor.cli.connection import ask
from governor.cli.options import connection_options
from governor.cli.output.tables import moment, tokens_table
from governor.cli.parameters import Duration
from governor.domain.roles import Role
from governor.process.options import output_option
from governor.values.printing import Format, machine_text
from governor.wire.rest import TokenRequest


@click.group()
def token() -> None:
    """Make, list and revoke tokens of people, programs and agents."""


@token.command("create")
@click.option("--name", required=True, help="Whose token it is; stands in the history as the author.")
@click.option("--role", required=True, type=click.Choice([role.value for role in Role]), help="What it allows.")
@click.option("--ttl", type=Duration(), help="How long it is valid, for example 12h or 30d; without it until revoked.")
@connection_options()
def create(name: str, role: str, ttl: int | None) -> None:
    """Make a token for a person or a program and print it, once."""
    _make(
        TokenRequest(name=name, role=Role(role), ttl_seconds=ttl),
        "it is not shown again: keep it in a file that only you can read",
    )


@token.command("join")
@click.argument("runtime")
@click.option(
    "--ttl", type=Duration(), help="How long it can be used, for example 15m; without it as the server decides."
)
@connection_options()
def join(runtime: str, ttl: int | None) -> None:
    """Make a one-time token with which an agent joins as RUNTIME, and print it, once."""
    _make(TokenRequest(runtime=runtime, ttl_seconds=ttl), "it works once: hand it to `governor agent`")


@token.command("list")
@output_option
@connection_options()
def list_tokens(output: Format) -> None:
    """List the tokens, without their texts."""
    found = ask(lambda client: client.tokens())
    click.echo(tokens_table(found, datetime.now(UTC)) if output == "table" else machine_text(found, output))


@token.command("revoke")
@click.argument("token_id", metavar="ID")
@connection_options()
def revoke(token_id: str) -> None:
    """Refuse a token from now on, also on open connections."""
    ask(lambda client: client.revoke_token(token_id))
    click.echo(f"token {token_id} revoked")


def _make(request: TokenRequest, advice: str) -> None:
    made = ask(lambda client: client.create_token(request))
    click.echo(made.text)
    until = f"valid until {moment(made.token.expires)}" if made.token.expires else "valid until revoked"
    click.echo(f"token {made.token.id}, {until}; {advice}", err=True)
