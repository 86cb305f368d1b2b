"""What is kept of one module on one cluster beside its objects: the reference that was applied, and its record."""
