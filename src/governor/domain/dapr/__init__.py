"""Dapr knowledge that several programs share: kinds and their schemas, reload rules, sensitive fields.

The files in ``data/`` are derived from Dapr's own sources by ``make generate``. Talking to a sidecar is excluded.
"""
