"""The languages in which an index knows the words of a text by their stems."""

from typing import Literal, get_args

#: Their English names, as the stemmer has them; `none` is for texts in another language, or in many: words are compared
#: as they are, and all of them count.
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
]

#: All of them.
LANGUAGES: tuple[str, ...] = get_args(Language)

#: The one whose words have no stems.
NO_LANGUAGE = LANGUAGES[0]
