"""A model, prepared for serving. Imports nothing of other rooms; `export` and `reference` alone need `torch`."""
