"""The agent for a Kubernetes cluster with Dapr: applies resources, restarts what must restart, asks the sidecars."""
