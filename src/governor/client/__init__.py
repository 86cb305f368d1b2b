"""Client of the server's API for the command line, the agent and tests.

Bodies are the structs of ``wire``. Reconnects, retries and rendering are excluded: callers do them.
"""

from governor.client.api import Client, WatchSession

__all__ = ["Client", "WatchSession"]
