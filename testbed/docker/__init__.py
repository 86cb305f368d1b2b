"""The peers of the runtime proxy's Docker mode: a real dockerd and its clients."""
