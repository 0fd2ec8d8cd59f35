"""The token vectors of a version's documents: a late-interaction model scores hits with them, and reads no text again.

Knows no search and no model. Imports the contract and `files`.
"""
