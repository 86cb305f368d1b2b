"""The scenario of `make demo-kubernetes`: server and agents from their charts in a real cluster with Dapr."""
