"""Answers: HTTP responses, and the formats and number types of their vectors."""
