"""Flow control: backoff, circuit breaker, and rate limiter."""
