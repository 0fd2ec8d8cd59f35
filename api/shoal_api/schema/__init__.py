"""The shapes of requests and responses, as pydantic's models. Imports the contract and the formats of vectors."""
