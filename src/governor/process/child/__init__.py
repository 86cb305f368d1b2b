"""Child processes: the only place that starts them, their output, and processes that outlive the program."""
