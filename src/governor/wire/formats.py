"""Negotiation of formats between agent and server, and the headers of a watch.

An agent announces in each request which formats of deliveries and reports it has; the server uses the newest common
one. A request without these headers is from version 0.1, which has only format 1.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from governor.errors import GovernorError, Kind, invalid

DELIVERY_FORMATS: Final = "Governor-Delivery-Formats"
REPORT_FORMATS: Final = "Governor-Report-Formats"
REPORT_FORMAT: Final = "Governor-Report-Format"
"""In the response to a watch: the format in which the server wants reports; absent in version 0.1."""
PLATFORM: Final = "Governor-Platform"
"""In a watch: the platform of the agent; without it the agent is local, as every agent of version 0.1 is."""
EPOCH: Final = "Governor-Agent-Epoch"
"""In a watch: a number that increases with each process that takes over the agent; 0 without it. A header, because
servers reject query parameters that they do not know."""
PLATFORM_MISMATCH: Final = "platform-mismatch"
"""Error code of an enrolment or a watch by an agent of another platform than its runtime's."""
UNSUPPORTED: Final = "format-unsupported"
"""Error code of a request by an agent that has no format that the server could use."""
SESSION: Final = "Governor-Watch-Session"
"""In the response to a watch: its session, which reports carry; absent in version 0.1."""


def announce(formats: Sequence[int]) -> str:
    """Return the value of a header that announces formats."""
    return ", ".join(map(str, formats))


def negotiate(headers: Mapping[str, str], header: str, ours: Sequence[int]) -> int:
    """Return the newest format that a request announces and that we have; raise if there is none."""
    text = headers.get(header, "1")
    try:
        theirs = {int(part) for part in text.split(",")}
    except ValueError as error:
        raise invalid("formats", f"header {header} must be a list of numbers, not {text!r}") from error
    common = theirs & set(ours)
    if common:
        return max(common)
    older = "agent" if max(theirs) < min(ours) else "server"
    message = f"{header} {text!r} has no format in common with this server ({announce(ours)}); upgrade the {older}"
    raise GovernorError(Kind.UNIMPLEMENTED, UNSUPPORTED, message)
