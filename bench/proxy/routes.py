"""The routes to a runtime: direct, through our proxy, or through another proxy started by the user."""

import re
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast, get_args

import msgspec

Runtime: TypeAlias = Literal["fake", "containerd", "docker", "kubelet"]
"""What is behind a proxy; ``kubelet`` is a real node, whose kubelet uses containerd through the proxy."""
RUNTIMES: Final = get_args(Runtime)
DIRECT: Final = "direct"
OURS: Final = "ours"
POLICY: Final = "policy"
PLUGIN_SETS: Final = {"": 0, "go": 1, "python": 1, "three": 3, POLICY: 1}
"""Number of plugins in each set: none, one in Go, one in Python, three in Go; a policy that changes the same."""
_PEER: Final = re.compile(
    r"(?P<proxy>[^+@=,]+)(\+(?P<plugins>go|python|three))?(@(?P<runtime>containerd|kubelet))?=(?P<socket>/[^,]+),(?P<pid>\d+)"
)


class Route(msgspec.Struct, frozen=True):
    """One route; the direct one has no proxy process."""

    proxy: str
    socket: Path
    pid: int | None = None
    plugins: str = ""
    runtime: Runtime = "fake"

    @property
    def name(self) -> str:
        """Title of its column."""
        return route_name(self.proxy, self.plugins)


def route_name(proxy: str, plugins: str) -> str:
    """Return the title of a route's column."""
    return f"{proxy}+{plugins}" if plugins else proxy


def parse_peer(text: str) -> Route:
    """Parse another proxy on the command line: ``NAME[+go|+python|+three][@containerd|@kubelet]=SOCKET,PID``."""
    found = _PEER.fullmatch(text)
    if found is None or found["proxy"] in (DIRECT, OURS):
        raise ValueError(f"{text!r} is not of the form NAME[+go|+python|+three][@containerd|@kubelet]=SOCKET,PID")
    return Route(
        proxy=found["proxy"],
        socket=Path(found["socket"]),
        pid=int(found["pid"]),
        plugins=found["plugins"] or "",
        runtime=cast("Runtime", found["runtime"] or "fake"),
    )
