"""The command ``governor runtime-proxy``. The program itself runs in a process that loads nothing of this."""

import click

from governor.process.lean import become
from governor.process.options import options
from governor.runtimeproxy.settings import Settings


@click.command("runtime-proxy")
@options(Settings, "runtime-proxy")
def runtime_proxy(settings: Settings) -> None:
    """Stand between kubelet and its container runtime and let plugins change how pods start.

    Takes the flags, the plugins' files and the hook protocol of koord-runtime-proxy.
    """
    become("governor.runtimeproxy", settings)
