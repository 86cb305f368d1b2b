"""The API server with Dapr's definitions that tests of the apply set use, here for Events and status objects."""

from tests.contract.agent.apply.conftest import api, client, faults, namespace, transport

__all__ = ["api", "client", "faults", "namespace", "transport"]
