"""The processes of `shoal serve`: started, watched and stopped. Imports the contract, the broker and the client."""
