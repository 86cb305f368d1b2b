"""One whole real cluster on this machine: a control plane, and a node that runs pods.

``cluster`` is how tests and people use it. It waits for the machine-wide lock (``turn``) and starts ``guard``, a
process outside that clears up; that one starts ``inside``, which runs the servers in namespaces of their own. Only
``dapr`` and ``workloads`` know Dapr.
"""
