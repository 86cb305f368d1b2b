"""Watches: the hub of open event streams, agent reports, and the runtime status derived from both."""
