"""Control file and maintainer scripts of the package."""

from typing import Final

NAME: Final = "runtime-governor"
_SERVICE: Final = "governor-runtime-proxy.service"
_UNITS: Final = f"{_SERVICE} governor-runtime-proxy.socket"
# In a test root there is no systemd to be told.
_HAS_SYSTEMD: Final = '[ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]'


def control(version: str, architecture: str, python: str, installed_kib: int) -> str:
    """Return the control file; the package has extension modules for one minor version of Python."""
    major, minor = python.split(".")[:2]
    return f"""Package: {NAME}
Version: {version}
Architecture: {architecture}
Maintainer: Runtime Governor <maintainers@runtime-governor.dev>
Installed-Size: {installed_kib}
Depends: python3 (>= {major}.{minor}), python3 (<< {major}.{int(minor) + 1})
Section: admin
Priority: optional
Description: runtime proxy between kubelet and a container runtime
 Lets hook plugins and policies change with which cgroup and resource settings
 pods and containers start on a node. Compatible with koord-runtime-proxy.
"""


POSTINST: Final = f"""#!/bin/sh
set -e
if [ "$1" = configure ] && {_HAS_SYSTEMD}; then
    systemctl daemon-reload
    # The running proxy hands its sockets over to the new version; without one nothing is started.
    if systemctl --quiet is-active {_SERVICE}; then
        systemctl reload {_SERVICE}
    fi
fi
"""
PRERM: Final = f"""#!/bin/sh
set -e
if [ "$1" = remove ] && {_HAS_SYSTEMD}; then
    systemctl stop {_UNITS}
    systemctl --quiet disable {_UNITS}
fi
"""
POSTRM: Final = f"""#!/bin/sh
set -e
if {_HAS_SYSTEMD}; then
    systemctl daemon-reload
fi
"""
SETTINGS: Final = """# Settings of the runtime proxy, as GOVERNOR_RUNTIME_PROXY_... variables.
# See governor-runtime-proxy(8).
#GOVERNOR_RUNTIME_PROXY_LOG_LEVEL=info
"""
