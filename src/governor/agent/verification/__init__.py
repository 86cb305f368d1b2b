"""Verification: the sidecar API client, and pure decisions over its answers on whether a sidecar uses a resource."""
