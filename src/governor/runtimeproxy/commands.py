"""The command ``governor runtime-proxy``. The program itself is imported only when it runs."""

import click

from governor.process.options import options
from governor.runtimeproxy.settings import Settings


@click.command("runtime-proxy")
@options(Settings, "runtime-proxy")
def runtime_proxy(settings: Settings) -> int:
    """Stand between kubelet and its container runtime and let plugins change how pods start.

    Takes the flags, the plugins' files and the hook protocol of koord-runtime-proxy.
    """
    from governor.runtimeproxy.main import main  # noqa: PLC0415 - completion and help must not pay for the program

    return main(settings)
