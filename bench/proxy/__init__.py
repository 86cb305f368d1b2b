"""`make bench-proxy`: the cost of the runtime proxy compared to no proxy and to other proxies, in one run.

Each route to a runtime (direct, ours, another proxy) is measured by one client on one connection, as kubelet uses it.
The order of the routes is shuffled within each round, so that noise of the machine affects all of them.
"""
