"""Shoal's HTTP front end: it turns requests into jobs on the queue, and replies into JSON."""
