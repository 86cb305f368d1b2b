"""The Docker Engine API: relayed HTTP/1.1 exchanges, held requests, dockerd's client. Imported in Docker mode only.

| module | holds |
|---|---|
| ``heads``, ``bodies``, ``routes`` | HTTP/1.1 and the API's routes, without I/O |
| ``names``, ``configuration``, ``messages`` | Kubernetes' pods and containers in Docker's JSON |
| ``sockets``, ``exchange``, ``session``, ``server`` | connections of clients and of dockerd |
| ``held``, ``responses`` | requests held for plugins, and the proxy's own responses |
| ``daemon`` | client for the proxy's own requests |
| ``front`` | composition |
"""
