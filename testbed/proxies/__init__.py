"""Proxies on loopback that break or tunnel connections."""
