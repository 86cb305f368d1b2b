"""Renders a chart as plain manifests for ``kubectl apply``, with the pinned Helm: ``make manifests``.

The result is one file without traces of Helm, in which every object names its namespace. The namespaces themselves are
not in it: ``kubectl delete -f`` would delete what the agent or the server keeps in them.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from toolchain import cache
from toolchain.errors import TestbedError
from toolchain.helm import HELM
from toolchain.repository import REPOSITORY

CHARTS: Final = REPOSITORY / "charts"
_HELM_LABELS: Final = re.compile(r"^ +(app\.kubernetes\.io/managed-by: Helm|helm\.sh/chart: .*)\n", re.MULTILINE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the manifests, or explain why not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("chart", choices=sorted(path.name for path in CHARTS.iterdir()))
    parser.add_argument("--namespace", default="runtime-governor", help="namespace of the program")
    parser.add_argument("--name", help="name of its objects, the chart's by default")
    parser.add_argument("--values", type=Path, help="file with values of the chart")
    parser.add_argument("--output", type=Path, required=True, help="file to write")
    given = parser.parse_args(arguments)
    try:
        text = render(given.chart, given.namespace, given.name or given.chart, given.values)
    except TestbedError as error:
        print(error, file=sys.stderr)
        return 1
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(text, encoding="utf-8")
    print(f"kubectl create namespace {given.namespace}\nkubectl apply --server-side -f {given.output}")
    return 0


def render(chart: str, namespace: str, name: str, values: Path | None) -> str:
    """Return the manifests of a chart."""
    options = [f"--values={values}"] if values else []
    argv = [str(cache.provide(HELM)), "template", name, str(CHARTS / chart), f"--namespace={namespace}", *options]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TestbedError(f"cannot render the chart {chart}: {done.stderr.strip()}")
    return _HELM_LABELS.sub("", done.stdout)


if __name__ == "__main__":
    sys.exit(main())
