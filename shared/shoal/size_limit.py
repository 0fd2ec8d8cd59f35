"""The size limits of texts, which the API checks before it puts a job and a worker before it runs one."""

from collections.abc import Sequence

from shoal.errors import TooLarge


def check_texts(texts: Sequence[str], max_texts: int, max_text_chars: int, subject: str, remedy: str) -> None:
    """Raise TooLarge if there are more than `max_texts` texts, or if one has more than `max_text_chars` characters.

    The message names the `subject` that has the texts, such as "request", and the `remedy` for too many of them.
    """
    if len(texts) > max_texts:
        raise TooLarge(f"the {subject} has {len(texts):,} texts and may have {max_texts:,}: {remedy}")
    for number, text in enumerate(texts):
        if len(text) > max_text_chars:
            raise TooLarge(
                f"text {number} has {len(text):,} characters and may have {max_text_chars:,}: cut it into passages"
            )
