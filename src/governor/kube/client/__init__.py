"""The client of one cluster: requests, retries, streams, and discovery."""
