"""Operating the proxy: control socket, explain, lint, tap, audit log, and the watchdog."""
