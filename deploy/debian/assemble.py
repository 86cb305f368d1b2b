"""Assemble the Debian package: ``.venv/bin/python -m deploy.debian.assemble --output build``.

The programs are in a virtual environment below ``/usr/lib``, for the Python of the Debian release on which this runs.
"""

import argparse
import gzip
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from deploy.debian.manual import man_page
from deploy.debian.scripts import NAME, POSTINST, POSTRM, PRERM, SETTINGS, control
from deploy.image.interpreter import Interpreter, inspect
from deploy.image.layers import compile_all, install_locked, reproducible
from toolchain import cache
from toolchain.errors import TestbedError
from toolchain.repository import REPOSITORY, VENV_PYTHON
from toolchain.steps import Argv, Steps

PYTHON: Final = Path("/usr/bin/python3")
HOME: Final = f"usr/lib/{NAME}"
_UNITS: Final = REPOSITORY / "deploy" / "systemd"
_CONFFILE: Final = "etc/default/governor-runtime-proxy"
_DIRECTORIES: Final = ("etc/runtime/hookserver.d", "etc/runtime/policies.d")
_COMMAND: Final = f"#!/{HOME}/bin/python3\nimport sys\nfrom governor.cli.main import main\nsys.exit(main())\n"


def put(root: Path, steps: Steps) -> tuple[str, Interpreter]:
    """Write all files of the package below a directory, and return its version and the Python it is for."""
    interpreter = inspect(PYTHON)
    site = root / HOME / interpreter.site
    install_locked(interpreter, site, steps)
    version = _put_product(root, site, steps)
    compile_all(interpreter, root, [site], steps)
    settings = f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {interpreter.version}\n"
    _write(root / HOME / "pyvenv.cfg", settings)
    _write(root / HOME / "bin" / "governor", _COMMAND, mode=0o755)
    (root / HOME / "bin" / "python3").symlink_to(f"/usr/bin/{interpreter.name}")
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/governor").symlink_to(f"/{HOME}/bin/governor")
    for unit in _UNITS.iterdir():
        text = unit.read_text(encoding="utf-8").replace("/usr/local/bin/governor", "/usr/bin/governor")
        _write(root / "lib/systemd/system" / unit.name, text)
    page = man_page((REPOSITORY / "docs/reference/cli.md").read_text(encoding="utf-8"), version)
    _write(root / "usr/share/man/man8/governor-runtime-proxy.8.gz", gzip.compress(page.encode(), mtime=0))
    _write(root / f"usr/share/doc/{NAME}/copyright", (REPOSITORY / "LICENSE").read_text(encoding="utf-8"))
    _write(root / _CONFFILE, SETTINGS)
    for directory in _DIRECTORIES:
        (root / directory).mkdir(parents=True)
    return version, interpreter


def _put_product(root: Path, site: Path, steps: Steps) -> str:
    """Build the project's wheel, unpack it and return its version."""
    wheels = root.with_name("wheel")
    build: Argv = [VENV_PYTHON, "-m", "hatchling", "build", "--target", "wheel", "--directory", wheels]
    steps.run("build the wheel", build, cwd=REPOSITORY, environment=reproducible())
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return wheel.name.split("-")[1]


def pack(
    root: Path, version: str, interpreter: Interpreter, output: Path, steps: Steps, compression: str = "xz"
) -> Path:
    """Make the package of a directory with all of its files, and return its path."""
    architecture = steps.output("ask for the architecture", ["dpkg", "--print-architecture"]).strip()
    size = sum(each.lstat().st_size for each in root.rglob("*") if not each.is_dir()) // 1024
    scripts = {"postinst": POSTINST, "prerm": PRERM, "postrm": POSTRM}
    shutil.rmtree(root / "DEBIAN", ignore_errors=True)
    _write(root / "DEBIAN/control", control(version, architecture, interpreter.version, size))
    _write(root / "DEBIAN/conffiles", f"/{_CONFFILE}\n")
    for name, text in scripts.items():
        _write(root / "DEBIAN" / name, text, mode=0o755)
    output.mkdir(parents=True, exist_ok=True)
    package = output / f"{NAME}_{version}_{architecture}.deb"
    build: Argv = ["dpkg-deb", "--root-owner-group", f"-Z{compression}", "--build", root, package]
    steps.run("make the package", build, environment={**os.environ, **reproducible()})
    return package


def _write(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)


def main() -> int:
    """Assemble the package and print its path."""
    parser = argparse.ArgumentParser(prog="python -m deploy.debian.assemble", description="Assemble the package.")
    parser.add_argument("--output", type=Path, required=True, metavar="DIRECTORY", help="where the package is written")
    options = parser.parse_args()
    steps = Steps("package", cache.log_of("package"))
    steps.log.unlink(missing_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="governor-package-") as scratch:
            root = Path(scratch, "root")
            root.mkdir(mode=0o755)
            print(pack(root, *put(root, steps), options.output, steps))
    except TestbedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
