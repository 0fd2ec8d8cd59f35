"""The languages for which an index can reduce words to their stems."""

from typing import Literal, get_args

#: The stemmer's names for languages. `none` is for texts in other or several languages: words are compared unchanged,
#: and no word is left out. `learned`: words are the tokens of a sparse model, weighted by its vectors.
Language = Literal[
    "none",
    "arabic",
    "armenian",
    "basque",
    "catalan",
    "czech",
    "danish",
    "dutch",
    "english",
    "esperanto",
    "estonian",
    "finnish",
    "french",
    "german",
    "greek",
    "hindi",
    "hungarian",
    "indonesian",
    "irish",
    "italian",
    "lithuanian",
    "nepali",
    "norwegian",
    "persian",
    "polish",
    "portuguese",
    "romanian",
    "russian",
    "serbian",
    "sesotho",
    "spanish",
    "swedish",
    "tamil",
    "turkish",
    "yiddish",
    "learned",
]

#: The names of all languages.
LANGUAGES: tuple[str, ...] = get_args(Language)

#: The name for texts whose words are not reduced to stems, and the name for tokens with learned weights.
NO_LANGUAGE, LEARNED = LANGUAGES[0], LANGUAGES[-1]
