"""The shapes of requests and responses, by pydantic. Imports the contract (`shoal.jobs`) and the formats of vectors."""
