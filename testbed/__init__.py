"""The test bed: real servers of pinned versions, built or found by name, started on free loopback ports.

``recipes`` says by name how each tool is found or built; ``cache`` keeps what was built in the per-user cache;
``redis``, ``daprd`` and ``control_plane`` start them as ``server``s. Nothing here is shipped, and nothing here imports
the product. What ``recipes`` imports needs only the standard library, so that set-up can use it before a virtual
environment exists.
"""
