"""Kubernetes control planes on loopback: programs, PKI, webhooks, and faults in front of the API server."""
