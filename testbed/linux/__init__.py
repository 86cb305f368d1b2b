"""Linux namespaces and cgroups for tests, and what a killed run leaves behind."""
