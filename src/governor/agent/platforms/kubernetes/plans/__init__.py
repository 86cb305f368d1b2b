"""Plans: which workloads a delivery affects, which of them reload and which restart. Pure."""
