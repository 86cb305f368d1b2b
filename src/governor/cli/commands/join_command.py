"""``runtime join-command``: a join token, and the one command that installs the agent with it.

The token goes into a private file that the command reads, so that neither the terminal nor the history of the shell
shows it; with ``--inline`` it is part of the command, for another machine.
"""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click
import msgspec

import governor
from governor.cli.commands.follow import print_lines, warn
from governor.cli.connection import call_server
from governor.cli.options import connection_options
from governor.cli.param_types import Duration
from governor.domain.documents import DocumentRef, Platform
from governor.errors import GovernorError, Kind
from governor.process.bundled_charts import bundled_chart
from governor.process.tls import is_loopback
from governor.values.printing import timestamp
from governor.values.secret import Secret
from governor.wire.rest import TokenCreated, TokenRequest

if TYPE_CHECKING:
    from governor.client import Client

CHART: Final = "governor-agent"
IMAGE: Final = f"local.test/governor:{governor.__version__}"
"""The name of the image that ``deploy.image`` assembles."""

_MAX_RELEASE: Final = 53


class Installation(msgspec.Struct, frozen=True):
    """What the printed command installs, and where."""

    runtime: str
    namespaces: tuple[str, ...]
    image: str
    chart: str
    namespace: str
    release: str

    def command(self, token: Path | Secret) -> str:
        """Return the command; a token that is not in a file is its input."""
        # Helm separates values by commas.
        source = str(token).replace(",", r"\,") if isinstance(token, Path) else "/dev/stdin"
        repository, _, tag = self.image.rpartition(":")
        words = [
            ["helm", "install", self.release, self.chart],
            [f"--namespace={self.namespace}", "--create-namespace", "--wait"],
            [
                f"--set-string=image.repository={repository},image.tag={tag}",
                f"--set-string=namespaces={{{','.join(self.namespaces)}}}",
            ],
            [f"--set-file=joinToken.value={source}"],
        ]
        install = " \\\n  ".join(shlex.join(each) for each in words)
        if isinstance(token, Path):
            return f"{install} &&\n  rm {shlex.quote(str(token))}"
        return f"{install} <<'END'\n{token.reveal()}\nEND"


class _RuntimeSpec(msgspec.Struct, frozen=True):
    """What this command reads of a Runtime; a newer server may send more."""

    platform: str
    namespaces: tuple[str, ...] = ("default",)


@click.command("join-command")
@click.argument("name", metavar="ID")
@click.option(
    "--platform",
    required=True,
    type=click.Choice([Platform.KUBERNETES.value]),
    help="Platform of the runtime; it must be that of its document.",
)
@click.option(
    "--image", default=IMAGE, show_default=True, envvar="GOVERNOR_IMAGE", show_envvar=True, help="Image of the agent."
)
@click.option(
    "--chart", help="Path or reference of the agent's chart.  [default: the one that comes with this command]"
)
@click.option(
    "--namespace",
    default="runtime-governor",
    show_default=True,
    help="Namespace of the agent; created if it is missing.",
)
@click.option("--release", help="Name of the Helm release.  [default: governor-agent-ID]")
@click.option(
    "--ttl", type=Duration(), help="Lifetime of the token, for example 15m.  [default: decided by the server]"
)
@click.option("--inline", is_flag=True, help="Put the token into the command, for another machine.")
@connection_options()
def join_command(name: str, platform: str, inline: bool, ttl: int | None, **options: Any) -> None:
    """Create a join token and print the command that installs the agent of a runtime.

    Run the printed command where helm reaches the cluster. The token is in a file that only you can read; the command
    removes it. With --inline the token is in the command: pipe it into a shell to keep it out of the history.
    """
    installation = _installation(name, Platform(platform), **options)
    file = Path.cwd() / f"{name}.join-token"
    if not inline and file.exists():
        message = f"{file} exists: use that token with the command that was printed for it, or remove it"
        raise GovernorError(Kind.EXISTS, "join-token-file", message)
    created = call_server(lambda client: _create(client, name, ttl))
    token = Secret(created.text)
    if not inline:
        _write_private(file, token)
    print_lines([installation.command(token if inline else file)])
    warn(_advice(created, installation, inline=inline))


def _installation(
    runtime: str, platform: Platform, image: str, chart: str | None, namespace: str, release: str | None
) -> Installation:
    name = release or f"{CHART}-{runtime.replace('.', '-')}"
    if len(name) > _MAX_RELEASE:
        message = f"the name {name} is longer than the {_MAX_RELEASE} characters of a Helm release; pass --release"
        raise GovernorError(Kind.PRECONDITION, "release-name", message)
    spec = call_server(lambda client: _runtime(client, runtime))
    if spec.platform != platform:
        message = (
            f"runtime {runtime!r} has platform {spec.platform}, so an agent for {platform} could not join; "
            f"use `governor token join {runtime}` and `governor agent`"
        )
        raise GovernorError(Kind.PRECONDITION, "platform-mismatch", message)
    tagged = image if ":" in image.rpartition("/")[2] else f"{image}:{governor.__version__}"
    return Installation(runtime, spec.namespaces, tagged, chart or str(bundled_chart(CHART)), namespace, name)


async def _runtime(client: "Client", name: str) -> _RuntimeSpec:
    found = await client.document(DocumentRef("Runtime", name))
    return msgspec.convert((found.document or {}).get("spec"), _RuntimeSpec)


async def _create(client: "Client", runtime: str, ttl: int | None) -> TokenCreated:
    """Create a token; one that no pod could use is revoked."""
    from governor.wire.credentials import read_join_token  # noqa: PLC0415 - cryptography takes long to import

    created = await client.create_token(TokenRequest(runtime=runtime, ttl_seconds=ttl))
    server = read_join_token(Secret(created.text)).server
    if is_loopback(urlsplit(server).hostname or ""):
        await client.revoke_token(created.token.id)
        message = (
            f"agents would join at {server}, which no pod can reach: start the server with --public-url and TLS, "
            "or install it with its chart"
        )
        raise GovernorError(Kind.PRECONDITION, "server-local", message)
    return created


def _write_private(file: Path, token: Secret) -> None:
    """Write a new file that only its owner can read."""
    try:
        file.touch(mode=0o600, exist_ok=False)
        file.write_text(f"{token.reveal()}\n", encoding="ascii")
    except OSError as error:
        message = f"cannot write {file}: {error.strerror or error}; the token is unused and expires"
        raise GovernorError(Kind.PRECONDITION, "join-token-file", message) from error


def _advice(created: TokenCreated, installation: Installation, *, inline: bool) -> list[str]:
    lines = [f"token {created.token.id}, valid until {timestamp(created.token.expires)}, can be used once"]
    if installation.image == IMAGE:
        lines.append(f"the nodes need the image {IMAGE}; pass --image or set GOVERNOR_IMAGE for your own registry")
    if inline and installation.chart == str(bundled_chart(CHART)):
        lines.append("the chart is named by its path on this machine; pass --chart for another one")
    return [*lines, f"the namespaces {', '.join(installation.namespaces)} must exist in the cluster"]
