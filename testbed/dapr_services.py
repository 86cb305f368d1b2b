"""Dapr's control plane in the cluster: its services built from its Go module, installed by its own chart.

Its scheduler service is left out: not all modules that it needs could be fetched.
"""

from pathlib import Path

from testbed.daprd import MODULE, copy_module
from toolchain import cache
from toolchain.golang import GO, environment
from toolchain.recipe import Recipe
from toolchain.steps import Argv, Steps

SERVICES = ("operator", "sentry", "injector", "placement")


def services(version: str) -> Recipe:
    """Return the recipe of the services of a version; their chart is beside them as ``chart``."""

    def build(result: Path, steps: Steps) -> None:
        go = cache.provide(GO)
        source = result.with_name("source")
        copy_module(steps, go, version, source)
        flags = ["-ldflags", f"-s -w -X {MODULE}/pkg/buildinfo.version={version}"]
        for service in SERVICES:
            compilation: Argv = [go, "build", *flags, "-o", result / service, f"./cmd/{service}"]
            steps.run(f"compile {service}", compilation, cwd=source, environment=environment())
        (source / "charts" / "dapr").rename(result / "chart")

    return Recipe("dapr-services", version, "operator", build, inputs=SERVICES, packages=("ca-certificates",))
