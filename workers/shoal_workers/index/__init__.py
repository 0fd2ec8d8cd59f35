"""Indexes of documents and their versions: building, opening, searching, serving and changing them.

`files` reads and writes the files of a version, `lexical` indexes words, `vectors` finds rows by their vectors and
keeps vectors of tokens, and `search` has the other parts of a search, such as filters. `engines` keeps versions in
vector engines in place of files. `build` makes versions, and `store` copies them. The index itself imports `files`,
`lexical`, `vectors`, `search`, `engines`, `changes` and `model`. `serving` and `long_jobs` are built on all this:
`serving` uses the store and knows no build, and `long_jobs` imports the build and knows no store.
"""
