"""The processes of `shoal serve`: started, watched and stopped. Imports settings, the broker and the client."""
