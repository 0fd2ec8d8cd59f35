"""Answers: responses, formats of vectors, types of numbers."""
