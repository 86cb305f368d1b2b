"""`make bench-kube`: our Kubernetes client and reflector beside kubernetes_asyncio and lightkube, in one run.

Every figure comes from a fresh process that runs one task with one library. The libraries take turns within a round, so
that a slow moment of the machine hits all of them.
"""
