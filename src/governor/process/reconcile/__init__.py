"""Reconciling: a work queue of keys with priorities and fairness, and the loop that works it off."""
