"""The quality of search: test collections, measures, comparisons of settings. Imports the contract and records."""
