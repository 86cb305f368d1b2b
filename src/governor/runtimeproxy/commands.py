"""The commands of ``governor runtime-proxy``. The proxy itself runs in a process that loads nothing of this."""

from pathlib import Path
from typing import Final

import click

from governor.process.child.exec import exec_module
from governor.process.exit_codes import DONE, NO
from governor.process.options import options, output_option
from governor.runtimeproxy.settings import Settings
from governor.values.printing import Format, machine_text

_REQUEST_TIMEOUT_S: Final = 120.0
"""What kubelet gives a call if nobody tells it otherwise."""


class _Command(click.Command):
    """A command beside the proxy itself, which has the flags."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Say where a flag of the proxy stands if it does not stand there."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if ctx.parent is None or not any(error.option_name in each.opts for each in ctx.parent.command.params):
                raise
            path = f"{ctx.parent.command_path} {error.option_name} ... {self.name}"
            raise click.UsageError(f"{error.option_name} stands before the command: {path}", ctx) from error


@click.group("runtime-proxy", invoke_without_command=True)
@options(Settings, "runtime-proxy")
def runtime_proxy(settings: Settings) -> None:
    """Stand between kubelet and its container runtime and let plugins change how pods start.

    Takes the flags, the plugins' files and the hook protocol of koord-runtime-proxy.

    With one of the commands below it runs no proxy: `lint` checks the plugins' files, `explain` and `tap` ask the proxy
    that runs. They find it by the same flags, variables and file, which stand before the command.
    """
    context = click.get_current_context()
    if context.invoked_subcommand is None:
        exec_module("governor.runtimeproxy", settings)
    context.obj = settings


@runtime_proxy.command("lint", cls=_Command)
@click.argument(
    "directory",
    required=False,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="[DIRECTORY]",
)
@click.option("--strict", is_flag=True, help="End with 1 for warnings too.")
@click.option(
    "--runtime-request-timeout",
    "request_timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    default=_REQUEST_TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="Kubelet's setting of this name: what it gives a call.",
)
@output_option
@click.pass_obj
def lint(settings: Settings, directory: Path | None, strict: bool, request_timeout_s: float, output: Format) -> int:
    """Check the plugins' files, and show who is asked by which hook.

    Needs no running proxy. DIRECTORY is that of --hook-server-dir if none is given. Ends with 1 if a file has errors.
    """
    from governor.runtimeproxy.ops.lint import examine  # noqa: PLC0415 - help must not pay for it
    from governor.runtimeproxy.ops.lint_text import report_text  # noqa: PLC0415

    report = examine(directory or settings.hook_server_dir, settings.plugin_timeout, request_timeout_s)
    click.echo(report_text(report) if output == "table" else machine_text(report, output))
    return NO if report.errors or (strict and report.warnings) else DONE


@runtime_proxy.command(
    "explain", cls=_Command, short_help="Show what was told of a pod, who is asked about it, and what changed."
)
@click.argument("pod")
@output_option
@click.pass_obj
def explain(settings: Settings, pod: str, output: Format) -> None:
    """Show what the runtime was told of POD, which plugins are asked about it or why not, and what they changed.

    POD is a name, namespace/name, a uid, or the beginning of a sandbox's id. Values of environment variables are not
    shown.
    """
    from governor.runtimeproxy.ops.control_client import ControlClient  # noqa: PLC0415
    from governor.runtimeproxy.ops.explain_text import explanation_text, meant  # noqa: PLC0415

    client = ControlClient(Path(settings.control_path))
    chosen = meant(client.pods(), pod)
    found = client.pod(chosen.namespace, chosen.name)
    click.echo(explanation_text(found) if output == "table" else machine_text(found, output))


@runtime_proxy.command("tap", cls=_Command)
@click.option(
    "--pod", default="", metavar="POD", help="Only calls about this pod: name, namespace/name, uid or sandbox id."
)
@click.option("--method", default="", metavar="NAME", help="Only calls of this method; * stands for anything.")
@click.option("--held", is_flag=True, help="Only calls that were held for plugins.")
@click.option("--errors", is_flag=True, help="Only calls that failed, or with which a plugin did.")
@click.option("--count", type=click.IntRange(min=1), metavar="NUMBER", help="End after so many calls.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For people, or a line of JSON for each call.",
)
@click.pass_obj
def tap(settings: Settings, pod: str, method: str, held: bool, errors: bool, count: int | None, output: str) -> None:
    """Show calls live, as they end, until Ctrl-C.

    While somebody looks no connection is copied byte by byte: clients of those that are come again, which kubelet does
    by itself, and are copied again when they connect the next time after that. Whoever reads too slowly loses lines and
    is told how many; calls never wait.
    """
    from governor.runtimeproxy.ops.control import CallFilter  # noqa: PLC0415
    from governor.runtimeproxy.ops.control_client import ControlClient  # noqa: PLC0415
    from governor.runtimeproxy.ops.tapping import follow  # noqa: PLC0415

    wanted = CallFilter(pod, method, held, errors)
    follow(ControlClient(Path(settings.control_path)).calls(wanted), count, in_json=output == "json")
