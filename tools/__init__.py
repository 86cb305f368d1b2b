"""Programs behind the Makefile: set-up and locks. Nothing here is shipped."""
