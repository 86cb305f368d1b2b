"""What a program reports about itself: logs, metrics, health, and the HTTP server behind them."""
