"""An index of documents and its versions: opened, searched, served and changed, and the long jobs that do more.

`files` has the parts of a version, `search` finds rows in it, `build` makes it, and `store` takes it to other machines.
The index itself imports `files`, `search`, `changes` and `model`. On top stand `open_indexes`, which imports the store
and knows no build, and `long_tasks`, which imports the build and knows no store.
"""
