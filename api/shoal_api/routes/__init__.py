"""The routes, one file for each family. Imports the schema, the context and access control."""
