"""Identity: principals and their tokens, runtime keys, and the keys and certificates of the server itself."""
