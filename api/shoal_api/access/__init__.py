"""Access to the API: keys, rates, quotas, CORS. Imports the contract, the broker, and the API's request."""
