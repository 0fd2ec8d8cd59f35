"""A worker process: how it starts, shows that it is alive, and ends. Imports the worker and all it is made of."""
