"""The quality of search: test collections, measures and comparisons. Imports the contract and records."""
