"""Verification: the sidecar API client, and pure decisions over its responses on whether a sidecar uses a resource."""
