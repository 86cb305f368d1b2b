"""The runtime proxy: relays calls between kubelet and a container runtime, and lets plugins change how pods start.

| package | holds |
|---|---|
| ``http2``, ``grpc`` | the protocols, without I/O |
| ``environment`` | variables of containers; pods, containers and resources are in ``wire.hooks.workload`` |
| ``cri`` | kubelet's protocol: connections, held streams, messages, the runtime's client |
| ``docker`` | the Docker Engine API: the same over HTTP/1.1; imported in Docker mode only |
| ``front``, ``serving`` | what ``main`` knows of either, and the server that both extend |
| ``hooks`` | hooked calls and the merging of plugins' changes |
| ``plugins`` | registration and clients of plugins |
| ``policies`` | built-in policies, loaded with the first file of one |
| ``store`` | records of sandboxes and containers |
| ``ops`` | control socket, ``explain``, ``lint``, ``tap``, audit log, watchdog |

Without plugins and policies it changes nothing.
"""
