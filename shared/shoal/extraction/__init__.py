"""Text of web pages, Markdown and PDF files, which a process of its own reads. Imports the contract alone."""
