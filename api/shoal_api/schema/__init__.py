"""The shapes of requests and responses, by pydantic. Imports the contract (`shoal.jobs`) alone."""
