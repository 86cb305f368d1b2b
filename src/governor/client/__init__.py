"""The server's API for the command line, the agent and tests: one ``Client``, the only place that speaks HTTP to it.

Bodies are the structs of ``wire.rest``. Reconnecting, retrying and rendering are the callers' business.
"""

from governor.client.api import Client

__all__ = ["Client"]
