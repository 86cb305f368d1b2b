"""A complete real cluster on this machine: a control plane, and a node that runs pods.

Tests and the command line use ``cluster``. It acquires the machine-wide lock (``machine_lock``) and starts ``guard``,
which cleans up at the end; the guard starts ``servers``, which runs the servers in their own namespaces. Only
``dapr`` and ``workloads`` depend on Dapr.
"""
