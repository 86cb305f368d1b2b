"""Client of one Kubernetes API server: requests, retries, streams and discovery.

Caching a kind is ``governor.kube.reflector``; deciding what to write is ``governor.kube.applyset``.
"""

from governor.kube.client.client import Client, Limits, Request, Transport

__all__ = ["Client", "Limits", "Request", "Transport"]
