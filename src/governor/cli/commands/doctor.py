"""``doctor``: check an installation and print what to do about each problem."""

import asyncio
import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from governor.cli.commands.diagnosis import (
    CheckResult,
    DataDirectory,
    Diagnosis,
    ServerReply,
    check_directory,
    check_server,
    diagnose,
    diagnosis_text,
    failed_check,
)
from governor.cli.connection import call_server, is_local, server_url
from governor.cli.options import connection_options
from governor.errors import GovernorError, invalid
from governor.process.exit_codes import NEGATIVE, SUCCESS
from governor.process.options import output_option
from governor.values.printing import Format, machine_text

if TYPE_CHECKING:
    from governor.client import Client


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Data directory of a server on this machine.  [default: governor-data, if it exists]",
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Check the cluster of this kubeconfig instead, before an agent is installed in it.",
)
@click.option("--context", default="", help="Context of the kubeconfig.  [default: its current context]")
@click.option("--namespace", "namespaces", multiple=True, help="Namespace that the agent will manage; repeatable.")
@click.option("--agent-namespace", default="runtime-governor", show_default=True, help="Namespace of the agent itself.")
@output_option
@connection_options()
def doctor(
    data_dir: Path | None,
    kubeconfig: Path | None,
    context: str,
    namespaces: tuple[str, ...],
    agent_namespace: str,
    output: Format,
) -> int:
    """Check this installation and show how to fix problems.

    Checks the server (reachable, trusted, ready, version, clock), the token, every runtime, and the data directory of
    a server on this machine. Exits with 0 if there is no problem and with 1 if there is one.

    With --kubeconfig, checks a cluster instead: its version, Dapr (installed, available, version, kinds, hot reload),
    the namespaces, what you may do there, and what may be in the way of the network. Nothing is written.
    """
    if kubeconfig is None:
        diagnosis = diagnose([*_check_server(), *_check_data_directory(data_dir)])
    else:
        diagnosis = diagnose(_check_cluster(kubeconfig, context, namespaces, agent_namespace))
    click.echo(diagnosis_text(diagnosis) if output == "table" else machine_text(diagnosis, output))
    return _exit_code(diagnosis)


def _exit_code(diagnosis: Diagnosis) -> int:
    return NEGATIVE if any(each.is_problem for each in diagnosis.findings) else SUCCESS


def _check_server() -> list[CheckResult]:
    server = server_url()
    try:
        return list(check_server(server, call_server(_fetch)))
    except GovernorError as error:
        return [failed_check(server, error)]


async def _fetch(client: "Client") -> ServerReply:
    status = await client.status()
    time = datetime.now(UTC)
    return ServerReply(status, await client.runtimes(), time)


def _check_cluster(
    kubeconfig: Path, context: str, namespaces: tuple[str, ...], agent_namespace: str
) -> list[CheckResult]:
    # The Kubernetes client takes long to import, and most users check their server.
    from governor.cli.commands.cluster_diagnosis import check_cluster, failed_cluster  # noqa: PLC0415
    from governor.cli.commands.cluster_facts import read_cluster  # noqa: PLC0415
    from governor.kube.config.kubeconfig import load  # noqa: PLC0415

    subject = str(kubeconfig)
    try:
        access = load(kubeconfig, context)
        subject = access.server
        facts = asyncio.run(read_cluster(access, namespaces, agent_namespace))
    except GovernorError as error:
        return [failed_cluster(subject, error)]
    return list(check_cluster(facts, server_url()))


def _check_data_directory(given: Path | None) -> Iterator[CheckResult]:
    from governor.server.settings import Settings  # noqa: PLC0415 - most servers are on another machine

    path = given or Settings().data_dir
    if given is None and not (is_local(server_url()) and path.is_dir()):
        return
    try:
        yield from check_directory(_read_directory(path))
    except OSError as error:
        message = f"cannot read {path}: {error.strerror or error}"
        yield failed_check(str(path), invalid("data-dir", message))


def _read_directory(path: Path) -> DataDirectory:
    """Return modes and free space of a data directory; world-readable ``.url`` files are skipped. Blocking."""
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.iterdir() if each.suffix != ".url"}
    space = os.statvfs(path)
    return DataDirectory(path, {".": stat.S_IMODE(path.stat().st_mode), **modes}, space.f_bavail * space.f_frsize)
