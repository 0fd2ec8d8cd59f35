"""An index of documents and its versions: opened, searched, served and changed, and the long jobs that do more.

`files` has the parts of a version, `lexical` its words; `vectors` finds rows, and `search` does what
a search asks beside. `build` makes all, and `store` copies it. The index imports `files`, `lexical`, `vectors`,
`search` and `model`. On top stand `serving`, with the store, which knows no build, and `long_tasks`, which imports the
build and knows no store.
"""
