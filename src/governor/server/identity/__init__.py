"""Identity: principals with their tokens, runtime keys, and the server's own keys and certificates."""
