"""Plugins: their registration files, the watched directory, and calls to the registered plugins."""
