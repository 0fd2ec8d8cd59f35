"""The routes, one file for each path or family of paths. Imports the rest of the front end; only `app` imports it."""
