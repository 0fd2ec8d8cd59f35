"""The shapes of requests and responses, by pydantic. Imports the contract and the formats of vectors."""
