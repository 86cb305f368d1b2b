"""Self-hosted Dapr on this machine: a resources directory and the daprd processes that load it."""
