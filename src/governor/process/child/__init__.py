"""Child and detached processes, their output, and replacing this process; nothing else starts a process."""
