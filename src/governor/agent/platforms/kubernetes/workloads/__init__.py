"""Workloads with Dapr in the cluster: pods, their owners and sidecars, as watched. Nothing is written here."""
