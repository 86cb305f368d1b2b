"""The commands of everyday use, one module per command or noun."""
