"""The text of web pages, Markdown and PDF files, read by a separate process. Imports only the contract."""
