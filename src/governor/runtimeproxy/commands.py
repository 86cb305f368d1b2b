"""The commands of ``governor runtime-proxy``. The proxy itself runs in a process that does not import this."""

from pathlib import Path
from typing import Final

import click

from governor.process.child.exec import exec_module, own_command
from governor.process.exit_codes import NEGATIVE, SUCCESS
from governor.process.options import options, output_option
from governor.runtimeproxy.settings import Settings
from governor.values.printing import Format, machine_text

_REQUEST_TIMEOUT_S: Final = 120.0
"""Kubelet's default ``runtimeRequestTimeout``."""


_MALLOC: Final = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(128 * 1024),
    "MALLOC_TRIM_THRESHOLD_": str(256 * 1024),
}
"""glibc raises its thresholds with the largest block so far, and then never gives memory of large messages back."""


class _Command(click.Command):
    """A subcommand; the flags belong to the group."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Explain where to put a flag of the proxy that was given after the subcommand."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if ctx.parent is None or not any(error.option_name in each.opts for each in ctx.parent.command.params):
                raise
            path = f"{ctx.parent.command_path} {error.option_name} ... {self.name}"
            raise click.UsageError(f"{error.option_name} must precede the command: {path}", ctx) from error


@click.group("runtime-proxy", invoke_without_command=True)
@options(Settings, "runtime-proxy")
def runtime_proxy(settings: Settings) -> None:
    """Relay CRI calls between kubelet and a container runtime, and let plugins change how pods start.

    With `--backend-runtime-mode Docker` the runtime is dockerd, and clients speak the Docker Engine API. Flags, plugin
    files and hook protocol are compatible with koord-runtime-proxy.

    The commands below do not start a proxy: `lint` checks the plugin files, `explain` and `tap` query the running
    proxy, `upgrade` replaces it. They find it by the same flags, variables and file; flags precede the command.
    """
    context = click.get_current_context()
    if context.invoked_subcommand is None:
        exec_module("governor.runtimeproxy", settings, own_command(), _MALLOC)
    context.obj = settings


@runtime_proxy.command("lint", cls=_Command)
@click.argument(
    "directory",
    required=False,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="[DIRECTORY]",
)
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@click.option(
    "--runtime-request-timeout",
    "request_timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    default=_REQUEST_TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="Kubelet's setting of this name: the deadline of its calls.",
)
@output_option
@click.pass_obj
def lint(settings: Settings, directory: Path | None, strict: bool, request_timeout_s: float, output: Format) -> int:
    """Check the files of plugins and policies, and show which are called at each hook.

    Needs no running proxy. DIRECTORY defaults to --hook-server-dir. Exits with 1 if a file has errors.
    """
    from governor.runtimeproxy.ops.lint import report_text, run_lint  # noqa: PLC0415 - keeps --help fast

    directory = directory or settings.hook_server_dir
    report = run_lint(directory, settings.policy_dir, settings.plugin_timeout, request_timeout_s)
    click.echo(report_text(report) if output == "table" else machine_text(report, output))
    return NEGATIVE if report.errors or (strict and report.warnings) else SUCCESS


@runtime_proxy.command("explain", cls=_Command, short_help="Show a pod's settings, its plugins and their changes.")
@click.argument("pod")
@output_option
@click.pass_obj
def explain(settings: Settings, pod: str, output: Format) -> None:
    """Show POD as the runtime received it, which plugins are called for it or why not, and what they changed.

    POD is a name, namespace/name, a uid, or a prefix of a sandbox id. Values of environment variables are not shown.
    """
    from governor.runtimeproxy.ops.control_client import ControlClient  # noqa: PLC0415
    from governor.runtimeproxy.ops.explain_view import explanation_text, find_pod  # noqa: PLC0415

    client = ControlClient(Path(settings.control_path))
    summary = find_pod(client.pods(), pod)
    found = client.pod(summary.namespace, summary.name)
    click.echo(explanation_text(found) if output == "table" else machine_text(found, output))


@runtime_proxy.command("upgrade", cls=_Command)
@click.pass_obj
def upgrade(settings: Settings) -> None:
    """Replace the running proxy by the installed version, without an outage.

    The running proxy runs its own command again and hands its sockets over to the new process. It ends watches,
    finishes the calls in progress and exits. If the new version does not start, the running one continues and this
    command fails.
    """
    from governor.runtimeproxy.ops.control_client import ControlClient  # noqa: PLC0415

    done = ControlClient(Path(settings.control_path)).upgrade()
    click.echo(f"process {done.pid} (version {done.version}) serves in place of process {done.replaced}")


@runtime_proxy.command("tap", cls=_Command)
@click.option(
    "--pod", default="", metavar="POD", help="Only calls for this pod: name, namespace/name, uid or sandbox id."
)
@click.option("--method", default="", metavar="NAME", help="Only calls of this method; * is a wildcard.")
@click.option("--held", is_flag=True, help="Only calls held for plugins.")
@click.option("--errors", is_flag=True, help="Only calls that failed or in which a plugin failed.")
@click.option("--count", type=click.IntRange(min=1), metavar="NUMBER", help="Exit after this many calls.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Text, or one line of JSON per call.",
)
@click.pass_obj
def tap(settings: Settings, pod: str, method: str, held: bool, errors: bool, count: int | None, output: str) -> None:
    """Show calls live, as they end, until Ctrl-C.

    While a tap is open, connections are relayed, not copied byte by byte: clients of copied connections are asked to
    reconnect, which kubelet does by itself. If calls are not read fast enough, lines are dropped and counted; calls
    never wait.
    """
    from governor.runtimeproxy.ops.control import CallFilter  # noqa: PLC0415
    from governor.runtimeproxy.ops.control_client import ControlClient  # noqa: PLC0415
    from governor.runtimeproxy.ops.tap_view import follow  # noqa: PLC0415

    call_filter = CallFilter(pod, method, held, errors)
    follow(ControlClient(Path(settings.control_path)).calls(call_filter), count, in_json=output == "json")


@runtime_proxy.group("plugin")
def plugin() -> None:
    """Write hook plugins."""


@plugin.command("new", cls=_Command)
@click.argument("name")
@click.option("--directory", type=click.Path(path_type=Path), help="New directory for it; default: NAME.")
def new_plugin(name: str, directory: Path | None) -> None:
    """Create a hook plugin in Python: a plugin of 20 lines, its tests, and how to run it.

    It starts in mode `observe`, so that `explain` shows what it would change. Running it needs the extra
    `runtime-governor[hooks]`.
    """
    from governor.sdk.hooks.template import create  # noqa: PLC0415 - only this command needs it

    for path in create(name, directory or Path(name)):
        click.echo(path)
