"""Plugins: their registration files, the watched directory, and the clients that call them."""
