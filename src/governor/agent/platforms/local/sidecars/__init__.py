"""daprd on this machine: applications' sidecars, the agent's own or others', and throw-away ones."""
