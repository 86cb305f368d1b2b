"""``runtime``: operations on one runtime."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from governor.cli.commands.change import ChangeOptions, send, submit
from governor.cli.commands.follow import WaitOptions, follow, print_lines, print_result, wait_options, warn
from governor.cli.commands.join_command import join_command
from governor.cli.connection import call_server
from governor.cli.options import connection_options
from governor.cli.output.diff import document_title
from governor.cli.output.progress import CommandResult
from governor.cli.param_types import Duration
from governor.domain.documents import DocumentRef
from governor.domain.windows import Hold, utc_text
from governor.process.exit_codes import SUCCESS
from governor.wire.rest import ChangeRequest

if TYPE_CHECKING:
    from governor.client import Client

_LONGEST_HOLD_S: Final = 365 * 86400


@click.group()
def runtime() -> None:
    """Install a runtime's agent, hold, resume or retry a runtime, or revoke its agent's key."""


runtime.add_command(join_command)


@runtime.command("hold")
@click.argument("name", metavar="ID")
@click.option("--for", "for_s", type=Duration(), required=True, help="Duration of the hold, for example 2h.")
@click.option("--reason", required=True, help="Reason for the hold; shown with the runtime.")
@wait_options
@connection_options()
def hold(name: str, for_s: int, reason: str, **options: Any) -> int:
    """Hold a runtime: its agent applies no change and restarts nothing until the hold ends.

    Waits until the agent has received the hold. Verification, drift detection and health reports continue; a sidecar
    that exits is started again, and a change that fails in its verification window is rolled back. The hold ends by
    itself, or with `governor runtime resume`. It is `spec.hold` of the Runtime document.
    """
    if for_s > _LONGEST_HOLD_S:
        raise click.BadParameter("a hold lasts at most 365d", param_hint="--for")
    wait = WaitOptions(**options)
    until = (call_server(_server_time) + timedelta(seconds=for_s)).replace(microsecond=0)
    held = msgspec.to_builtins(Hold(until, reason))
    request = call_server(lambda client: _request(client, name, lambda spec: {**spec, "hold": held}, f"hold: {reason}"))
    change = send(request)
    warn(change.warnings)
    if not wait.quiet:
        print_lines([*map(document_title, change.documents), f"{name}: held until {utc_text(until)}: {reason}"])
    if not wait.wait or change.revision is None:
        return print_result(CommandResult(SUCCESS, f"revision {change.revision} accepted"), wait)
    result = follow(change.revision, wait, only=name, until_received=True)
    if result.exit_code == SUCCESS:
        result = msgspec.structs.replace(result, summary=f"revision {change.revision} received by {name}")
    return print_result(result, wait)


@runtime.command("resume")
@click.argument("name", metavar="ID")
@wait_options
@connection_options()
def resume(name: str, **options: Any) -> int:
    """End the hold of a runtime and wait until what was waiting is verified."""

    def without_hold(spec: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in spec.items() if key != "hold"}

    request = call_server(lambda client: _request(client, name, without_hold, "resume"))
    return submit(request, (), ChangeOptions(**options, message=request.message, dry_run=False, allow_deletions=False))


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


async def _server_time(client: "Client") -> datetime:
    # The clock of this machine may be wrong.
    return (await client.status()).time


async def _request(
    client: "Client", name: str, change: Callable[[dict[str, Any]], dict[str, Any]], message: str
) -> ChangeRequest:
    """Return the request that changes the spec of a runtime; it is rejected if another change comes first."""
    ref = DocumentRef("Runtime", name)
    view = await client.document(ref)
    document = view.document or {}
    changed = {**document, "spec": change(document.get("spec", {}))}
    return ChangeRequest((changed,), message=message, if_match={str(ref): view.version})
