"""An index of documents: built, opened, searched. Knows no queue."""
