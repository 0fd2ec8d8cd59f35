"""A model, prepared for serving. Imports nothing of other rooms; `reference` alone needs `torch`."""
