"""What is known of sandboxes and containers: from the calls that pass, and from the runtime itself."""
