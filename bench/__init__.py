"""Programs behind `make bench-*`: times and memory, never asserted by a test."""
