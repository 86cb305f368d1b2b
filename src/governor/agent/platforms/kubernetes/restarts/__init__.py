"""Restarts of workloads: whether and how, what they must not be restarted into, and how they are judged."""
