"""The contract: jobs and replies, as objects and as bytes. Imports only `errors`."""
