"""Flow control: backoff, circuit breaker, rate limiter, and bounded worker."""
