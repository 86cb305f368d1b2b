"""Assemble the governor's image: ``.venv/bin/python -m deploy.image.assemble --output governor.tar``.

The Containerfile in this directory runs the same command with ``--root``.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from deploy.image.interpreter import inspect
from deploy.image.layers import DATA, VENV, Product, environment, product_layer, program_layer, python_layer
from toolchain import cache
from toolchain.errors import TestbedError
from toolchain.helm import HELM
from toolchain.oci import LOCAL, Image, write_archive
from toolchain.renderer import RENDERER
from toolchain.repository import VENV_PYTHON
from toolchain.steps import Steps

PROGRAMS: Final = (HELM, RENDERER)
"""Programs of the toolchain, one layer each."""
_LABEL: Final = "org.opencontainers.image"


@contextmanager
def governor_image(steps: Steps, python: Path = VENV_PYTHON, revision: str = "") -> Iterator[Image]:
    """Yield the governor's image; its product layer is deleted at the end."""
    interpreter = inspect(python)
    large = (python_layer(interpreter), *map(program_layer, PROGRAMS))
    with tempfile.TemporaryDirectory(prefix="governor-image-") as scratch:
        product = product_layer(interpreter, Path(scratch), steps)
        yield Image(
            f"{LOCAL}/governor:{product.metadata['Version']}",
            (*large, product.layer),
            entrypoint=(f"/{VENV}/bin/governor",),
            environment=environment(),
            directory=f"/{DATA}",
            volumes=("/tmp", f"/{DATA}"),
            labels=_labels(product, revision),
        )


def _labels(product: Product, revision: str) -> dict[str, str]:
    headers = {"title": "Name", "description": "Summary", "version": "Version", "licenses": "License-Expression"}
    labels = {f"{_LABEL}.{label}": str(product.metadata[header]) for label, header in headers.items()}
    return {**labels, f"{_LABEL}.revision": revision} if revision else labels


def main() -> int:
    """Assemble the image, write it and print its name and digest."""
    options = _parser().parse_args()
    steps = Steps("image", cache.log_of("image"))
    steps.log.unlink(missing_ok=True)
    try:
        with governor_image(steps, options.python, options.revision) as image:
            if options.root:
                _unpack(image, options.root, steps)
            else:
                archive = write_archive(image, options.output)
                print(f"{archive.name} {archive.digest} {archive.file} ({archive.file.stat().st_size >> 20} MiB)")
    except TestbedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.image.assemble", description="Assemble the governor's image."
    )
    result = parser.add_mutually_exclusive_group(required=True)
    result.add_argument("--output", type=Path, metavar="FILE", help="write an OCI archive")
    result.add_argument("--root", type=Path, metavar="DIRECTORY", help="write the root file system instead")
    python = "the interpreter of the image (default: that of .venv)"
    parser.add_argument("--python", type=Path, default=VENV_PYTHON, help=python)
    parser.add_argument("--revision", default="", help="value of the label org.opencontainers.image.revision")
    return parser


def _unpack(image: Image, root: Path, steps: Steps) -> None:
    root.mkdir(parents=True, exist_ok=True)
    extraction = ("tar", "--extract", "--numeric-owner", "--preserve-permissions")
    for layer in image.layers:
        steps.run(f"unpack {layer.title}", [*extraction, "--directory", root, "--file", layer.file])


if __name__ == "__main__":
    sys.exit(main())
