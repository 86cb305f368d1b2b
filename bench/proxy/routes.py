"""The routes to a runtime: direct, through our proxy, or through another proxy started by the user."""

import re
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

Runtime: TypeAlias = Literal["fake", "containerd"]
RUNTIMES: Final[tuple[Runtime, ...]] = ("fake", "containerd")
DIRECT: Final = "direct"
OURS: Final = "ours"
PLUGIN_SETS: Final = {"": 0, "go": 1, "python": 1, "three": 3}
"""Number of plugins in each set: none, one in Go, one in Python, three in Go."""
_PEER: Final = re.compile(
    r"(?P<proxy>[^+@=,]+)(\+(?P<plugins>go|python|three))?(@(?P<runtime>fake|containerd))?=(?P<socket>/[^,]+),(?P<pid>\d+)"
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
        return f"{self.proxy}+{self.plugins}" if self.plugins else self.proxy


def parse_peer(text: str) -> Route:
    """Parse another proxy on the command line: ``NAME[+go|+python|+three][@containerd]=SOCKET,PID``."""
    found = _PEER.fullmatch(text)
    if found is None or found["proxy"] in (DIRECT, OURS):
        raise ValueError(f"{text!r} is not of the form NAME[+go|+python|+three][@containerd]=SOCKET,PID")
    return Route(
        proxy=found["proxy"],
        socket=Path(found["socket"]),
        pid=int(found["pid"]),
        plugins=found["plugins"] or "",
        runtime="containerd" if found["runtime"] == "containerd" else "fake",
    )
