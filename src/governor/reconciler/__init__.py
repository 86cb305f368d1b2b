"""The reconciler: keeps modules (Helm charts) installed, healthy and unmodified in clusters.

All state is in custom resources of one namespace, the hub namespace; there is no database. ``kinds`` defines them.
Kubernetes mechanism without product nouns is in ``governor.kube``.
"""
