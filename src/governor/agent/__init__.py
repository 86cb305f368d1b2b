"""The agent of one runtime: takes deliveries, applies them, proves that they are in use, and says so.

``plan`` and ``verification`` decide without I/O; ``loop`` is the only place that acts on what they decide. What is
special to one platform lives under ``platforms``. The server's side and the formats between both are elsewhere.
"""
