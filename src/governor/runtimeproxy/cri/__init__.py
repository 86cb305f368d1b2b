"""The Container Runtime Interface as far as the proxy needs it: held streams, messages, the runtime's client.

``cri_pb2`` is derived from ``cri.proto``. What hooks and records are about is in ``wire.hooks.workload``.
"""
