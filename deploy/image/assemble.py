"""Assemble the governor's image: ``.venv/bin/python -m deploy.image.assemble --output governor.tar``.

The Containerfile beside this file runs the same with ``--root``.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.image.interpreter import ask
from deploy.image.layers import DATA, VENV, Product, environment, helm_layer, product_layer, python_layer
from toolchain import cache
from toolchain.errors import TestbedError
from toolchain.oci import LOCAL, Image, write_archive
from toolchain.steps import Steps
from toolchain.wheels import VENV_PYTHON

_LABEL = "org.opencontainers.image"


@contextmanager
def governor_image(steps: Steps, python: Path = VENV_PYTHON, revision: str = "") -> Iterator[Image]:
    """The governor's image, for as long as its product's layer is kept."""
    interpreter = ask(python)
    large = (python_layer(interpreter), helm_layer())
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
    of_wheel = {"title": "Name", "description": "Summary", "version": "Version", "licenses": "License-Expression"}
    labels = {f"{_LABEL}.{label}": str(product.metadata[header]) for label, header in of_wheel.items()}
    return {**labels, f"{_LABEL}.revision": revision} if revision else labels


def main() -> int:
    """Assemble what the command line asks for and say what it is."""
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
    python = "the interpreter to put into it (the one of the working copy's environment)"
    parser.add_argument("--python", type=Path, default=VENV_PYTHON, help=python)
    parser.add_argument("--revision", default="", help="what the label org.opencontainers.image.revision says")
    return parser


def _unpack(image: Image, root: Path, steps: Steps) -> None:
    root.mkdir(parents=True, exist_ok=True)
    extraction = ("tar", "--extract", "--numeric-owner", "--preserve-permissions")
    for layer in image.layers:
        steps.run(f"unpack {layer.title}", [*extraction, "--directory", root, "--file", layer.file])


if __name__ == "__main__":
    sys.exit(main())
