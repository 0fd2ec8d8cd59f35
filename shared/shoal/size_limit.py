"""The size limits of texts and hits, which the API checks before it puts a job and a worker before it runs one."""

from collections.abc import Sequence

from shoal.errors import TooLarge
from shoal.jobs import Job

#: Characters at the beginning of a text whose words are counted; a worker reads at least as many.
COUNTED_CHARS = 8_192

#: Most hits that a job may ask for, with all its queries. A worker serves nothing else while it reads their documents.
MAX_JOB_HITS = 10_000

#: Most rows that a job with search options goes over, for all its lists of hits together. That takes about a second, in
#: which the worker serves nothing else.
MAX_JOB_ROWS = 2**27

#: Most characters of the texts of a job for the tokenizer, by operation, unless it has one text. A worker serves no
#: other job meanwhile: to tokenize so many takes a quarter of a second at most, and some 300 bytes of memory each.
MAX_TOKENIZER_CHARS = {"tokenize": 65_536, "decode": 2**20}

#: Most characters that an HTTP request may have tokenized, and most ids that it may have decoded: the answer takes some
#: hundred bytes of memory for each.
MAX_REQUEST_PIECES = 2**20

#: Most hits that an HTTP request may ask for, which the API holds at the same time.
MAX_REQUEST_HITS = 100_000

#: The settings that limit the texts of a request, whose jobs go to one lane, and the texts of a job.
_MAX_TEXTS = {"request": "SHOAL_MAX_BACKLOG_TEXTS", "job": "SHOAL_MAX_JOB_TEXTS"}


def check_texts(job: Job, max_texts: int, max_text_chars: int, subject: str, remedy: str) -> None:
    """Raise TooLarge if a job has more than `max_texts` texts, or if one has more than `max_text_chars` characters.

    The message names the `subject` that has the texts, "request" or "job", and the `remedy` for too many of them.
    """
    if len(job.texts) > max_texts:
        raise TooLarge(
            f"the {subject} has {len(job.texts):,} texts and may have {max_texts:,} ({_MAX_TEXTS[subject]}): {remedy}"
        )
    for number, text in enumerate(job.texts):
        if len(text) > max_text_chars:
            raise TooLarge(
                f"{job.name_of(number)} has {len(text):,} characters and may have {max_text_chars:,} "
                "(SHOAL_MAX_TEXT_CHARS): cut it into passages"
            )


def check_query(job: Job, max_text_chars: int) -> None:
    """Raise TooLarge if a query for which texts or hits are scored has more than `max_text_chars` characters."""
    given = {"query": job.query if job.op == "rerank" else None, "rerank.query": (job.search.rerank or {}).get("query")}
    for name, query in given.items():
        if query and len(query) > max_text_chars:
            raise TooLarge(f"{name} has {len(query):,} characters and may have {max_text_chars:,}: shorten it")


def check_hits(job: Job, most: int, subject: str) -> None:
    """Raise TooLarge if a search asks for more than `most` hits; the message names the `subject` that asks."""
    if job.op == "search" and (num_hits := job.num_lists * job.hits_per_list) > most:
        raise TooLarge(f"the {subject} asks for {num_hits:,} hits and may ask for {most:,}: split the list, or lower k")


def check_pairs(job: Job, most: int) -> None:
    """Raise TooLarge if a search has the reranker score more than `most` hits."""
    if job.num_pairs > most:
        raise TooLarge(
            f"the job has {job.num_pairs:,} hits to rerank and may have {most:,} (SHOAL_MAX_JOB_TEXTS): "
            "split the list, or lower rerank.top_n"
        )


#: The options with which a list goes over all documents again.
_COSTLY = ("mode hybrid", "sort", "facets", "group_size")


def check_rows(job: Job, num_rows: int) -> None:
    """Raise TooLarge if a search asks for too many lists of hits, when its filter leaves `num_rows` rows for each."""
    if not num_rows:
        return
    most = max(1, MAX_JOB_ROWS // (num_rows * job.search.num_passes))
    if job.num_lists > most:
        or_less = f", or leave out {' or '.join(_COSTLY)}" if job.search.num_passes > 1 else ""
        raise TooLarge(
            f"the job asks for {job.num_lists:,} lists of hits of {num_rows:,} documents, and may ask for {most:,} "
            f"with these options: split the list of queries{or_less}"
        )


def check_tokenizer_job(job: Job) -> None:
    """Raise TooLarge if a job for the tokenizer has several texts with too many characters altogether."""
    most = MAX_TOKENIZER_CHARS.get(job.op)
    if most is not None and len(job.texts) > 1 and (num_chars := sum(map(len, job.texts))) > most:
        raise TooLarge(
            f"the texts have {num_chars:,} characters, and a job to {job.op} may have {most:,}: split the list"
        )


def check_tokenizer_request(unit: str, number: int) -> None:
    """Raise TooLarge if a request to tokenize or decode has too many of a `unit`, such as "characters"."""
    if number > MAX_REQUEST_PIECES:
        raise TooLarge(f"the request has {number:,} {unit} and may have {MAX_REQUEST_PIECES:,}: split the list")


def check_chunk_vectors(texts: Sequence[str], chunk_tokens: int, dimension: int, max_reply_bytes: int) -> None:
    """Raise TooLarge if the vectors of the chunks are certainly over the limit: a word has at least one token."""
    parts = (text[n : n + COUNTED_CHARS] for text in texts for n in range(0, len(text), COUNTED_CHARS))
    num_chunks = sum(max(0, len(part.split()) - 1) for part in parts) // chunk_tokens
    if 4 * dimension * num_chunks > max_reply_bytes:
        raise TooLarge(
            f"the texts have at least {num_chunks:,} chunks of {chunk_tokens:,} tokens, whose vectors take "
            f"{4 * dimension * num_chunks:,} bytes, and a reply may have {max_reply_bytes:,}: raise chunk_tokens, "
            "send fewer or shorter texts at a time, or ask for one vector a text (output: vector)"
        )


def check_token_vectors(
    texts: Sequence[str], truncation_side: str, max_tokens: int, dimension: int, max_reply_bytes: int
) -> None:
    """Raise TooLarge if the token vectors of the texts are certainly over the limit: a word has at least one token.

    A text has at most `max_tokens` tokens, each with a vector of `dimension` 32-bit floats.
    """
    part = slice(-COUNTED_CHARS, None) if truncation_side == "left" else slice(COUNTED_CHARS)
    num_tokens = sum(min(len(text[part].split()), max_tokens) for text in texts)
    if 4 * dimension * num_tokens > max_reply_bytes:
        raise TooLarge(
            f"the texts have at least {num_tokens:,} tokens, whose vectors take {4 * dimension * num_tokens:,} bytes, "
            f"and a reply may have {max_reply_bytes:,} (SHOAL_MAX_REPLY_MB): split the list"
        )
