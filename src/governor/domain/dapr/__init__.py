"""What Dapr is, as far as several programs must know it: kinds and their schemas, reload, sensitive fields.

The facts in ``data/`` are derived from Dapr's own sources by ``make generate``. Talking to a sidecar is not here.
"""
