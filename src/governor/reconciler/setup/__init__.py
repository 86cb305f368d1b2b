"""What must exist before the reconciler can work: the definitions of its kinds, its namespace and the first Cluster."""
