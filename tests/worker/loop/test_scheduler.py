"""The scheduler alone: the texts of the next pass, the turns of jobs, and the room for further jobs."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal_workers.loop.scheduler
from shoal.contract.options import Options
from shoal.operations import Embed, Rerank
from shoal.queue.consumer import Delivery
from shoal_workers.encoding.bucketing import PASS_COST, Bucketing
from shoal_workers.encoding.chunking import TokenizedChunk
from shoal_workers.encoding.encoder import Pipeline, TokenizedText
from shoal_workers.encoding.tokenizer import Tokens
from shoal_workers.loop.batch import Batch
from shoal_workers.loop.scheduler import (
    MAX_PORTIONS,
    MAX_PREEMPTIBLE_CHARS,
    MAX_PREEMPTIBLE_S,
    MAX_TEXTS_OF_LONG,
    MAX_TOKENIZED_CHARS,
    MIN_PREEMPTIBLE_TOKENS,
    SHARES,
    WINDOW_PASSES,
    Scheduler,
)
from shoal_workers.operations.embed import ChunksWork, EmbedWork
from shoal_workers.operations.rerank import RerankWork
from shoal_workers.operations.work import BULK, INTERACTIVE, LONG, MAX_SHORT_TEXTS, Work

numbers = count()


@pytest.fixture(autouse=True)
def expected_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an interactive job, let the scheduler expect more of them until the end of the test."""
    monkeypatch.setattr(shoal_workers.loop.scheduler, "EXPECTED_S", 3_600.0)


def tokenize(texts: Sequence[str], side: str, is_query: bool = False) -> list[Tokens]:
    """Return a token for each word; a text is cut to its first or last 100 words."""
    cut = [text.split()[:100] if side == "right" else text.split()[-100:] for text in texts]
    return [
        Tokens(tuple(crc32(word.encode()) for word in words), len(words) < len(text.split()))
        for words, text in zip(cut, texts, strict=True)
    ]


def work(*texts: str, kind: str = INTERACTIVE, **options: Any) -> Work:
    job = Embed(list(texts), Options(**options))
    made = EmbedWork(make_delivery(kind, f"{next(numbers)}", job.pack()), job, pipeline())
    made.kind, made.takes_turns = kind, kind == LONG
    return made


def make_delivery(kind: str, key: str, data: bytes) -> Delivery:
    return Delivery(BULK if kind == BULK else INTERACTIVE, key, data, "w", 0)


def words(num_words: int) -> str:
    return " ".join(f"w{next(numbers)}" for _ in range(num_words))


class Chooser(Scheduler):
    """A scheduler that gives each added job its pipeline for embeddings or for reranks."""

    def __init__(self, embeds: Pipeline, **options: Any):
        super().__init__(embeds, **options)
        self._embeds = embeds
        self._reranks = pipeline(tokenize_pairs)

    def add(self, works: Iterable[Work]) -> None:
        works = list(works)
        for one in works:
            one.pipeline = self._reranks if isinstance(one, RerankWork) else self._embeds
        super().add(works)


def pipeline(how: Callable[..., list[Tokens]] = tokenize, max_tokens: int = 100) -> Pipeline:
    """Return the pipeline of a model of 100 tokens that has a tokenizer and no engine."""
    model = SimpleNamespace(name="words", max_tokens=100)
    encoder: Any = SimpleNamespace(model=model, fingerprint="f", tokenize=how, runs_aside=False)
    encoder.max_tokens, encoder.needs_pass = lambda is_query: model.max_tokens, lambda text: True
    return Pipeline(encoder, Bucketing(max_tokens))


def scheduler(max_tokens: int = 100, how: Callable[..., list[Tokens]] = tokenize, **options: Any) -> Scheduler:
    return Chooser(pipeline(how, max_tokens), **options)


def choose(scheduler: Scheduler) -> Batch:
    batch = scheduler.next_batch()
    assert batch is not None
    return batch


def finish(scheduler: Scheduler, batch: Batch, seconds: float = 0.0) -> list[Work]:
    for text in batch.texts:
        text.vectors = np.zeros((1, 2), np.float32)
    scheduler.finish(batch, seconds)
    return scheduler.completed()


def batches(scheduler: Scheduler) -> Iterator[Batch]:
    """Yield the passes that the scheduler chooses, and fail the test if they have no end."""
    for _ in range(100_000):
        batch = scheduler.next_batch()
        if batch is None:
            return
        yield batch
    pytest.fail("the passes have no end")


def test_equal_texts_are_computed_once_unless_their_options_differ() -> None:
    chosen = scheduler()
    chosen.add([work("storm", pooling=pooling) for pooling in ("mean", "max", None, None)])
    chosen.add([work("storm", output="tokens")])
    assert len(choose(chosen).texts) == 4
    chosen, text = scheduler(1_000), words(101)
    chosen.add([right := work(text), left := work(text, truncation_side="left")])
    chosen.next_batch()
    assert right.tokenized[0].tokens.ids == tokenize([text], "right")[0].ids
    assert left.tokenized[0].tokens.ids == tokenize([text], "left")[0].ids
    assert right.tokenized[0].tokens.truncated


def rerank(*texts: str) -> Work:
    job = Rerank(list(texts), query="w")
    made = RerankWork(make_delivery(INTERACTIVE, f"{next(numbers)}", job.pack()), job, pipeline())
    made.inputs = [("w", text) for text in texts]  # inputs as a cross-encoder has them
    made.untokenized.extend(range(len(texts)))
    return made


def tokenize_pairs(pairs: Sequence[tuple[str, str]], side: str, is_query: bool = False) -> list[Tokens]:
    return tokenize([" ".join(pair) for pair in pairs], side)


def test_embeds_and_reranks_take_turns_while_both_wait() -> None:
    chosen = scheduler()
    reranks, embeds = rerank(*(words(49) for _ in range(8))), work(*(words(50) for _ in range(4)))
    chosen.add([reranks, embeds])
    kinds = []
    for batch in batches(chosen):
        assert len({one.pipeline for one in batch.works}) == 1
        kinds.append(isinstance(batch.works[0], RerankWork))
        finish(chosen, batch)
    assert kinds == [True, False, True, False, True, True]


def test_a_pass_contains_the_oldest_text_and_keeps_its_budget() -> None:
    long, chosen = work(words(90)), scheduler()
    chosen.add([long, *(work(words(9)) for _ in range(20))])
    assert long in finish(chosen, choose(chosen))
    for batch in batches(chosen):
        assert batch.num_tokens <= 100
        finish(chosen, batch)


def test_a_chunk_that_is_encoded_before_an_earlier_one_is_encoded_once() -> None:
    job, chunks, chosen = Embed(["a b c"], Options(chunk_tokens=64)), [], scheduler()
    for start, num_words in ((0, 50), (2, 60), (4, 1)):  # the last chunk shares a pass with the first
        chunks.append(TokenizedChunk(start, start + 1, *tokenize([words(num_words)], "right")))
    chunker: Any = SimpleNamespace(cut=lambda text, start, covered: (chunks, None))
    chosen.add([ChunksWork(make_delivery(INTERACTIVE, "a", job.pack()), job, pipeline(), chunker=chunker)])
    sizes = []
    for batch in batches(chosen):
        sizes.append([text.num_tokens for text in batch.texts])
        finish(chosen, batch)
    assert sizes == [[1, 50], [60]]


@pytest.mark.parametrize(("tokens_per_s", "num_words"), [(20_000, 90), (50_000, 5)])
def test_a_pass_that_interactive_jobs_wait_for_fills_its_time_limit(tokens_per_s: int, num_words: int) -> None:
    chosen = scheduler(2_000)
    chosen.add([work(words(3)), work(*(words(num_words) for _ in range(4_000)), kind=BULK)])
    took = []
    for _ in range(30):
        batch = choose(chosen)
        took.append((PASS_COST + batch.num_tokens) / tokens_per_s)
        finish(chosen, batch, took[-1])
    assert max(took) <= MAX_PREEMPTIBLE_S
    assert took[-1] >= MAX_PREEMPTIBLE_S - 2 * num_words / tokens_per_s
    finish(chosen, choose(chosen), 1_000.0)  # even on a slow engine, a pass has a minimum of tokens
    assert choose(chosen).num_tokens == num_words * (MIN_PREEMPTIBLE_TOKENS // num_words or 1)


@pytest.mark.parametrize(("has_come", "num_portions"), [(False, MAX_PORTIONS), (True, 1)])
def test_once_an_interactive_job_has_come_no_more_bulk_is_tokenized(has_come: bool, num_portions: int) -> None:
    chosen = scheduler(has_come=lambda: has_come)
    chosen.add([work("now"), bulk := work(*(f"{n:0{MAX_PREEMPTIBLE_CHARS // 4}}" for n in range(100)), kind=BULK)])
    assert chosen.next_batch([BULK])
    assert len(bulk.tokenized) == 4 * num_portions


@given(
    st.lists(st.sampled_from(list(SHARES)), min_size=2, max_size=3, unique=True),
    st.lists(st.integers(5, 90), min_size=1, max_size=12),
    st.sampled_from([100, 200]),
)
def test_each_kind_gets_the_share_that_it_has_earned(kinds: list[str], lengths: list[int], max_tokens: int) -> None:
    chosen = scheduler(max_tokens)
    for kind in kinds:
        texts = itertools.islice(itertools.cycle(lengths), 10_000 // sum(lengths) * len(lengths))
        chosen.add([work(*map(words, texts), kind=kind)])
    tokens, most = dict.fromkeys(SHARES, 0), max(max_tokens, *lengths)
    first, *others = [kind for kind in SHARES if kind in kinds]
    for batch in batches(chosen):
        tokens[batch.kind] += batch.num_tokens
        finish(chosen, batch)
        if tokens[first] >= 8_000:
            break
    assert tokens[first] >= 8_000
    for place, low in enumerate(others, 1):
        owed = sum(SHARES[low] * tokens[high] for high in [first, *others][:place])
        assert abs(tokens[low] - owed) <= 2 * most


@pytest.mark.parametrize(
    ("lane", "texts", "kind"),
    [
        (INTERACTIVE, ["storm"] * MAX_SHORT_TEXTS, INTERACTIVE),
        (INTERACTIVE, ["storm"] * (MAX_SHORT_TEXTS + 1), LONG),
        (INTERACTIVE, ["x" * 65_536], LONG),
        (BULK, ["storm"], BULK),
    ],
    ids=["short", "many texts", "many bytes", "bulk"],
)
def test_a_job_is_short_long_or_bulk(lane: str, texts: list[str], kind: str) -> None:
    job = Embed(texts)
    assert EmbedWork(make_delivery(lane, "a", job.pack()), job, pipeline()).kind == kind


def test_long_jobs_take_turns_pass_by_pass() -> None:
    chosen = scheduler()
    chosen.add(long := [work(*(words(10) for _ in range(400)), kind=LONG) for _ in range(2)])
    found = []
    for batch in itertools.islice(batches(chosen), 4):
        found.append(batch.works)
        finish(chosen, batch)
    assert found == [long[:1], long[1:], long[:1], long[1:]]


def test_tokenizing_before_a_pass_is_bounded() -> None:
    sizes: list[int] = []

    def one_token(texts: Sequence[str], side: str, is_query: bool = False) -> list[Tokens]:
        sizes.append(sum(map(len, texts)))
        return [Tokens((1,)) for _ in texts]

    chosen = scheduler(100, one_token)
    chosen.add([work(*("x" * 8_000 for _ in range(500)))])
    assert chosen.next_batch()
    assert sum(sizes) <= MAX_PORTIONS * MAX_TOKENIZED_CHARS  # even if these characters make few tokens
    long, chosen = work(*(words(10) for _ in range(10_000))), scheduler()
    chosen.add([long])
    chosen.next_batch()
    num_chars = sum(len(long.job.texts[n]) for n in long.tokenized)
    assert len(long.tokenized) * 10 >= WINDOW_PASSES * 100
    assert num_chars <= MAX_TOKENIZED_CHARS + max(map(len, long.job.texts))


def test_a_kind_that_was_idle_has_earned_no_tokens_and_one_that_waits_for_long_at_most_a_pass() -> None:
    chosen = scheduler(200)
    chosen.add(work(*(words(10) for _ in range(1_000))) for _ in range(2))
    for _ in range(20):
        finish(chosen, choose(chosen))
    chosen.add([work(words(10), kind=LONG)])
    assert choose(chosen).kind == INTERACTIVE
    chosen = scheduler(200)
    chosen.add(work(*(words(10) for _ in range(1_000)), kind=kind) for kind in (INTERACTIVE, BULK))
    for _ in range(20):
        finish(chosen, chosen.next_batch([INTERACTIVE]) or pytest.fail("no pass"))
    num_owed = 0
    while (batch := choose(chosen)).kind == BULK:
        num_owed += batch.num_tokens
        finish(chosen, batch)
    assert 0 < num_owed <= 200


def test_the_same_text_in_another_kind_keeps_its_place() -> None:
    chosen = scheduler()
    urgent, bulk = work("storm"), work(words(90), "storm", kind=BULK)
    chosen.add([bulk, urgent])
    batch = choose(chosen)
    assert (batch.works, finish(chosen, batch)) == ([urgent], [urgent])
    assert not bulk.encoded


def test_a_text_that_a_later_job_repeats_completes_no_job_later_than_without_it() -> None:
    def passes_until_done(*others: Work) -> int:
        chosen, first = scheduler(), work(*(f"{words(9)} {n}" for n in range(20)), "storm")
        chosen.add([first, *others])
        return next(n for n in count(1) if first in finish(chosen, chosen.next_batch() or pytest.fail("no pass")))

    copies = [work("storm", words(9)) for _ in range(50)]
    assert passes_until_done(*copies) <= passes_until_done(*(work(words(1), words(9)) for _ in range(50)))


def test_there_is_room_for_a_pass_of_texts_of_each_lane() -> None:
    chosen = scheduler(max_batch_texts=64)
    assert chosen.room() == {INTERACTIVE: 64, BULK: 64}
    assert chosen.room(num_aside=10) == {INTERACTIVE: 64, BULK: 74}
    chosen.add([work(*(words(1) for _ in range(40))), work(*(words(1) for _ in range(10)), kind=LONG)])
    assert chosen.room() == {INTERACTIVE: 64 - 40 - MAX_TEXTS_OF_LONG, BULK: 1}
    chosen.add([work(words(1), kind=BULK)])
    assert chosen.room() == {INTERACTIVE: 64 - 40 - MAX_TEXTS_OF_LONG}


def test_every_text_of_a_random_mix_of_jobs_is_encoded_once() -> None:
    """Some jobs are removed; all others complete, and no text is in two passes."""
    random = np.random.default_rng(7)
    chosen = scheduler(120, max_batch_texts=16)
    added: list[Work] = []
    removed: set[Work] = set()
    done: list[Work] = []
    seen: set[TokenizedText] = set()
    for _ in range(300):
        for kind in SHARES:
            if random.random() < 0.2:
                texts = [words(int(random.integers(1, 40))) for _ in range(int(random.integers(1, 12)))]
                added.append(work(*texts, kind=kind))
                chosen.add(added[-1:])
        if (waiting := list(chosen.works)) and random.random() < 0.05:
            removed.add(gone := waiting[int(random.integers(len(waiting)))])
            del chosen.works[gone]
        if batch := chosen.next_batch():
            assert seen.isdisjoint(batch.texts)
            seen.update(batch.texts)
            done += finish(chosen, batch)
    for batch in batches(chosen):
        done += finish(chosen, batch)
    assert set(done) == set(added) - removed
    assert len(done) == len(set(done))
