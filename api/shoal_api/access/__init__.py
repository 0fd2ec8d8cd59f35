"""Who may use the API, and how much of it: keys, rates, quotas, CORS."""
