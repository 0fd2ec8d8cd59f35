"""Access to the API: keys, rates, shares, CORS. Imports the contract, the broker, and the API's request."""
