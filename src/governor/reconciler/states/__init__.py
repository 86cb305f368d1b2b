"""The status of each kind, computed from what was resolved and observed. Pure; the current time is a parameter."""
