"""Both sides of the runtime proxy: real containerds, callers, fake runtimes, and hook plugins."""
