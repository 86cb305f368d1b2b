"""Election of one leader among candidates by a Lease of coordination.k8s.io/v1, which steps down in time.

``candidate`` decides, from what a candidate has seen and from its own clock alone; ``elector`` asks the API server
and runs the work. Sharding work among several leaders is the caller's.
"""
