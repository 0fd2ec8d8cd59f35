"""Engines and models on one core, each in a process of its own."""
