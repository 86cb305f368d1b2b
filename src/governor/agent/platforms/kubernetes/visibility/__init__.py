"""What kubectl shows of the agent's work: Events on resources and workloads, and one status object per namespace."""
