"""The Container Runtime Interface as far as the proxy needs it: ``cri_pb2``, derived from ``cri.proto``."""
