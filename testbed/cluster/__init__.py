"""One whole real cluster on this machine: a control plane, and a node that runs pods.

``guard`` is a process outside that holds the machine-wide lock and clears up; ``inside`` starts the servers in network,
mount and process namespaces of their own; ``cluster`` is how tests and people use it. Nothing here knows Dapr.
"""
