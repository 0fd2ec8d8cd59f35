"""Heads make sparse weights, or a vector for each token, from token vectors. Imports the model room around it."""
