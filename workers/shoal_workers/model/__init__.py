"""A model: its files are read, checked and prepared for serving. Imports nothing of other rooms, and no torch."""
