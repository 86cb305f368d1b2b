"""The Debian package of the runtime proxy: a virtual environment for Debian's Python, systemd units, a man page."""
