"""Verification: pure decisions on whether a sidecar uses a resource, and the sidecar API that they read."""
