"""`make bench-kube`: compares our Kubernetes client and reflector with client-go, kubernetes_asyncio and lightkube.

Every figure comes from a new process that runs one task with one library. Each round runs all libraries, so that
interference on the machine affects all of them.
"""
