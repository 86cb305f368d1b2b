"""Watches: the hub of open event streams, the exchange of deliveries and reports, and the status derived from both."""
