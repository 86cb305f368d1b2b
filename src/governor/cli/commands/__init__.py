"""The commands that people use daily, one module per command or noun."""
