"""Logs, metrics and health of a program, and the HTTP server for them."""
