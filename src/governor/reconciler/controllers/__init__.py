"""The controllers of the reconciler, one module each. Decisions are in ``resolution``, ``states`` and ``steps``.

Both controllers of Clusters have the kind as their key: the ModuleInstances of a cluster are one apply set, so that a
module can move from one Installation to another without being removed and installed again.
"""
