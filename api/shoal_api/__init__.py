"""Shoal's HTTP front end: turns requests into jobs on the queue, and replies into JSON."""
