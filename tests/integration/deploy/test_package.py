"""The Debian package: installed, upgraded and removed in a test root, with nothing left behind."""

import gzip
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.debian.assemble import HOME, pack, put
from deploy.image.interpreter import Interpreter
from toolchain.steps import Steps


class Package:
    """All files of the package, made into packages of any version."""

    def __init__(self, directory: Path) -> None:
        self._steps = Steps("package", directory / "package.log")
        self._root = directory / "root"
        self._root.mkdir(mode=0o755)
        self._output = directory / "output"
        self.version, self._interpreter = self._put()

    def _put(self) -> tuple[str, Interpreter]:
        return put(self._root, self._steps)

    def of(self, version: str) -> Path:
        return pack(self._root, version, self._interpreter, self._output, self._steps, compression="none")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return Package(tmp_path_factory.mktemp("package"))


class Host:
    """A root directory with an empty package database."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("info", "updates", "triggers"):
            (root / "var/lib/dpkg" / name).mkdir(parents=True)
        (root / "var/lib/dpkg/status").touch()
        # Of the system, not of the package.
        for name in ("etc", "lib/systemd/system", "usr/bin", "usr/lib", "usr/share/doc", "usr/share/man/man8"):
            (root / name).mkdir(parents=True)
        self.before = self.files()

    def dpkg(self, *arguments: str | Path) -> None:
        options = [f"--root={self.root}", "--force-script-chrootless", "--force-depends", "--force-not-root"]
        environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
        command = ["dpkg", *options, *map(str, arguments)]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr

    def files(self) -> set[str]:
        """Return all files and directories except those of the package database and its log."""
        found: Iterator[Path] = (each.relative_to(self.root) for each in self.root.rglob("*"))
        return {str(each) for each in found if not str(each).startswith("var")}

    def governor(self, *arguments: str) -> str:
        """Run the installed program, with the Python of the installed virtual environment."""
        python = self.root / HOME / "bin" / "python3"
        command = [str(python), "-P", str(self.root / HOME / "bin" / "governor"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_package_is_installed_upgraded_and_removed_and_leaves_nothing(package: Package, tmp_path: Path) -> None:
    host = Host(tmp_path / "host")

    host.dpkg("--install", package.of("0.0.1"))
    assert (host.root / "lib/systemd/system/governor-runtime-proxy.socket").is_file()
    service = (host.root / "lib/systemd/system/governor-runtime-proxy.service").read_text()
    assert "ExecStart=/usr/bin/governor runtime-proxy" in service
    assert "/usr/local" not in service
    assert (host.root / "usr/bin/governor").readlink() == Path(f"/{HOME}/bin/governor")
    assert package.version in host.governor("--version")
    assert "lint" in host.governor("runtime-proxy", "--help")

    settings = host.root / "etc/default/governor-runtime-proxy"
    settings.write_text("GOVERNOR_RUNTIME_PROXY_LOG_LEVEL=debug\n")
    host.dpkg("--install", package.of(package.version))
    assert settings.read_text() == "GOVERNOR_RUNTIME_PROXY_LOG_LEVEL=debug\n"

    host.dpkg("--remove", "runtime-governor")
    assert host.files() - host.before == {"etc/default", "etc/default/governor-runtime-proxy"}
    host.dpkg("--purge", "runtime-governor")
    assert host.files() <= host.before


def test_the_man_page_has_the_commands_of_the_reference(package: Package, tmp_path: Path) -> None:
    host = Host(tmp_path / "host")
    host.dpkg("--install", package.of("0.0.1"))
    page = gzip.decompress((host.root / "usr/share/man/man8/governor-runtime-proxy.8.gz").read_bytes()).decode()

    for section in ("NAME", "DESCRIPTION", "EXPLAIN", "LINT", "TAP", "UPGRADE", "PLUGIN NEW"):
        assert f"\n.SH {section}\n" in page
    assert "\\fB\\-\\-policy\\-dir" in page
