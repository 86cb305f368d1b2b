"""Records of sandboxes and containers, taken from calls and from the runtime, and the history of plugins' changes."""
