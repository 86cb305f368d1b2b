"""`make bench-proxy`: what the runtime proxy costs, beside no proxy and beside any other one, in one run.

Every route to a runtime (direct, ours, another proxy's) is measured by one caller on one connection, as kubelet has it.
The routes take turns within each round in an order drawn anew, so that a slow moment of the machine hits all of them.
"""
