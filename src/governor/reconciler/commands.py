"""The commands ``governor reconciler``, ``governor module`` and ``governor cluster``; import their work only on use."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeVar

import click

from governor.process.exit_codes import NEGATIVE, SUCCESS
from governor.process.options import options, output_option
from governor.process.settings import prefix
from governor.reconciler.settings import NAMESPACE, PROGRAM, Settings
from governor.values.printing import Format

F = TypeVar("F", bound=Callable[..., Any])


class Hub(NamedTuple):
    """The hub that a command is about."""

    namespace: str
    context: str
    kubeconfig: Path | None


def hub_options(command: F) -> F:
    """Add the options that select the hub; the command is called with the selected ``hub``."""
    variable = f"{prefix(PROGRAM)}NAMESPACE"

    @functools.wraps(command)
    def with_hub(namespace: str, context: str, kubeconfig: Path | None, **arguments: Any) -> Any:
        return command(hub=Hub(namespace, context, kubeconfig), **arguments)

    wrapped: Any = with_hub
    text = f"The hub namespace.  [env: {variable}; default: {NAMESPACE}]"
    wrapped = click.option("-n", "--namespace", default=NAMESPACE, envvar=variable, metavar="NAME", help=text)(wrapped)
    text = "Context of the kubeconfig; default: its current context."
    wrapped = click.option("--context", default="", metavar="NAME", help=text)(wrapped)
    text = "Kubeconfig of the hub's cluster; default: KUBECONFIG, then ~/.kube/config."
    path = click.Path(path_type=Path, dir_okay=False)
    return click.option("--kubeconfig", type=path, metavar="FILE", help=text)(wrapped)  # type: ignore[no-any-return]


@click.group("reconciler", invoke_without_command=True)
@options(Settings, PROGRAM)
def reconciler(settings: Settings) -> int | None:
    """Run the reconciler: keep modules (Helm charts) installed and healthy in clusters.

    `governor reconciler install` prepares a cluster for it.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return None
    from governor.reconciler.main import main  # noqa: PLC0415 - keeps completion and help fast

    return main(settings)


@reconciler.command("install", short_help="Install or upgrade the kinds, and create the Cluster `local`.")
@click.option("--create-namespace", is_flag=True, help="Create the hub namespace if it does not exist.")
@hub_options
def install(hub: Hub, create_namespace: bool) -> None:
    """Install or upgrade the kinds of the reconciler, and create the Cluster `local`.

    Run it again for each new version: stored objects are kept, even if versions were skipped. A Cluster `local` that
    exists is not changed. The reconciler itself is installed by its chart, or runs wherever a kubeconfig works.
    """
    from governor.reconciler import queries  # noqa: PLC0415

    click.echo("\n".join(queries.install(hub, create_namespace=create_namespace)))


@click.group("module")
def module() -> None:
    """Show the modules of clusters, render their charts, and compare the two."""


@module.command("list")
@click.option("--cluster", default="", metavar="NAME", help="Only the modules of this cluster.")
@hub_options
@output_option
def list_modules(hub: Hub, cluster: str, output: Format) -> None:
    """List the modules on clusters with their states; `kubectl get moduleinstances` shows the same objects."""
    from governor.reconciler import queries  # noqa: PLC0415

    text = queries.list_modules(hub, cluster, output)
    click.echo(text or "No modules found.", err=not text)


@module.command("describe")
@click.argument("name")
@click.option("--cluster", default="local", show_default=True, metavar="NAME", help="The cluster of the module.")
@hub_options
@output_option
def describe_module(hub: Hub, name: str, cluster: str, output: Format) -> None:
    """Show the conditions and the history of a module on a cluster."""
    from governor.reconciler import queries  # noqa: PLC0415

    click.echo(queries.describe_module(hub, name, cluster, output))


@module.command("diff")
@click.argument("name")
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="YAML file with Modules, Channels, Installations and Clusters to compare with, as if the hub had them; "
    "repeat it for several, - is standard input.",
)
@click.option("--manifest", "with_manifest", is_flag=True, help="Also show what would be applied.")
@click.option("--cluster", default="local", show_default=True, metavar="NAME", help="The cluster of the module.")
@hub_options
@output_option
def diff_module(
    hub: Hub, name: str, files: tuple[TextIO, ...], with_manifest: bool, cluster: str, output: Format
) -> int:
    """Show how a module in its cluster differs from what its chart renders now; nothing is written.

    With -f it is a dry run of a change, before the hub has it: the API server validates each object.

    Exits with 0 if nothing differs, with 1 if something does, and with a higher code on an error. Fields that other
    clients may set, and values that the chart has generated before, do not differ. Values of Secrets are masked.
    """
    from governor.reconciler import queries  # noqa: PLC0415

    texts = {each.name: each.read() for each in files}
    text, is_different = queries.diff_module(hub, name, cluster, output, texts=texts, with_manifest=with_manifest)
    if text:
        click.echo(text)
    return NEGATIVE if is_different else SUCCESS


@module.command("render")
@click.argument("name", default="", metavar="[MODULE]")
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="YAML file with a Module and an Installation; repeat it for several, - is standard input.",
)
@click.option("--cluster", default="local", show_default=True, metavar="NAME", help="The cluster of the module.")
@click.option(
    "--kube-version",
    default="",
    metavar="VERSION",
    help="With -f: version of Kubernetes, such as v1.36.3; default: Helm's.",
)
@click.option(
    "--api-version",
    "api_versions",
    multiple=True,
    metavar="NAME",
    help="With -f: all API versions that the cluster has, such as apps/v1 or apps/v1/Deployment; default: Helm's.",
)
@hub_options
def render_module(
    hub: Hub, name: str, files: tuple[TextIO, ...], cluster: str, kube_version: str, api_versions: tuple[str, ...]
) -> None:
    """Print the objects and hooks that a module consists of on a cluster; nothing is written.

    Without -f the module is read from the hub, and its chart may read the cluster: it is what the reconciler would
    apply now, except for values that the chart generates. With -f no cluster is needed. Values of Secrets are masked.
    """
    from governor.reconciler import queries  # noqa: PLC0415

    if files:
        texts = {each.name: each.read() for each in files}
        text, unknown = queries.render_files(texts, name, cluster, kube_version, api_versions)
    elif name:
        text, unknown = queries.render_module(hub, name, cluster)
    else:
        raise click.UsageError("name a module of the hub, or files with -f")
    click.echo(text, nl=False)
    for each in unknown:
        click.echo(f"unknown hook {each}: a module with it is refused", err=True)


@module.command("rollback")
@click.argument("name")
@click.option("--undo", is_flag=True, help="Withdraw the rollback: apply the desired version again.")
@click.option("--cluster", default="local", show_default=True, metavar="NAME", help="The cluster of the module.")
@hub_options
def rollback_module(hub: Hub, name: str, undo: bool, cluster: str) -> None:
    """Roll a module back to the last state that was ready with another spec, until its spec changes."""
    from governor.reconciler import queries  # noqa: PLC0415

    click.echo(queries.rollback_module(hub, name, cluster, undo=undo))


@module.command("digest")
@click.argument("chart", type=click.Path(path_type=Path))
def digest(chart: Path) -> None:
    """Print the digest of a CHART, a directory or a packed chart, for spec.chart.digest of a Module."""
    from governor.reconciler.charts.digests import digest_of  # noqa: PLC0415

    click.echo(digest_of(chart))


@click.group("cluster")
def cluster() -> None:
    """Show the clusters that modules are installed in, and make one reconcile itself."""


@cluster.command("describe")
@click.argument("name", default="local")
@hub_options
@output_option
def describe_cluster(hub: Hub, name: str, output: Format) -> None:
    """Show the state and the conditions of a cluster, and one line for each of its modules."""
    from governor.reconciler import queries  # noqa: PLC0415

    click.echo(queries.describe_cluster(hub, name, output))


@cluster.command("bootstrap")
@click.option(
    "--image",
    required=True,
    metavar="REPOSITORY[:TAG]",
    help="Image of the governor; the default tag is this version.",
)
@click.option("--with-server", is_flag=True, help="Also install the server and an agent, as modules like any other.")
@click.option(
    "--agent-namespace",
    "agent_namespaces",
    multiple=True,
    metavar="NAME",
    help="With --with-server: a namespace that the agent manages; repeat it for several.",
)
@click.option("--timeout", default=600.0, show_default=True, metavar="SECONDS", help="Maximum time to wait.")
@hub_options
def bootstrap_cluster(
    hub: Hub, image: str, with_server: bool, agent_namespaces: tuple[str, ...], timeout: float
) -> None:
    """Make an empty cluster reconcile itself; run it again with a newer version to upgrade.

    This process installs the kinds, and the reconciler as a module, and ends when the reconciler in the cluster has
    taken over. It may be interrupted and repeated. Needs permission to create anything that the charts contain.
    """
    from governor.reconciler import bootstrap  # noqa: PLC0415

    modules = bootstrap.modules_of(image, with_server=with_server, agent_namespaces=agent_namespaces)
    bootstrap.main(hub, modules, timeout, click.echo)
