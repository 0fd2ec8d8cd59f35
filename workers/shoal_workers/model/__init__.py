"""A model: where it comes from, how it is prepared for serving, and the check that an engine reproduces it."""
