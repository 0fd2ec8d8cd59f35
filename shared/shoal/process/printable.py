"""Texts from outside, made safe for a terminal or a log: on one line, without control characters."""

#: Control characters, separators of lines and paragraphs, characters that change the direction of a text, and halves of
#: surrogate pairs, which cannot be encoded.
_UNPRINTABLE = (
    range(0x20),
    range(0x7F, 0xA0),
    range(0x2028, 0x202F),
    range(0x2066, 0x206A),
    range(0xD800, 0xE000),
)

#: The escapes of these characters in JSON.
_ESCAPES = {code: f"\\u{code:04x}" for codes in _UNPRINTABLE for code in codes} | {9: r"\t", 10: r"\n", 13: r"\r"}


def printable(text: str) -> str:
    """Return the text on one line, with control characters escaped as in JSON; JSON stays valid JSON."""
    return text if text.isascii() and text.isprintable() else text.translate(_ESCAPES)
