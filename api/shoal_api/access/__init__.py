"""Access control: API keys, rate limits, thread quotas, and the origins of CORS. Imports the request, no route."""
