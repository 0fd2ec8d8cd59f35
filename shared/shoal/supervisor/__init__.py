"""What `shoal serve` starts, watches, restarts and stops. Imports settings, the broker and the client."""
