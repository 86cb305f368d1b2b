"""Hooked calls: what plugins are asked, how their answers are merged, and what the runtime then receives."""
