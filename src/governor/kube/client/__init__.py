"""Client of one Kubernetes API server: requests, retries, streams and discovery.

Caching a kind is ``governor.kube.reflector``; deciding what to write is ``governor.kube.applyset``.
"""

from governor.kube.client.client import Client
from governor.kube.client.retry import Limits
from governor.kube.client.transport import METADATA, METADATA_LIST, Request, Transport

__all__ = ["METADATA", "METADATA_LIST", "Client", "Limits", "Request", "Transport"]
