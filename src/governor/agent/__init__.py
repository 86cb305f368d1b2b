"""The agent of one runtime: receives deliveries, applies them, verifies that they are in use and reports the result.

``verification`` decides without I/O; ``loop`` is the reconcile loop that acts. Platform-specific code lives under
``platforms``. Excluded: the server, and the formats that both exchange (``wire``).
"""
