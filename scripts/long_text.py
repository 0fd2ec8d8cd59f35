"""Measures the ways to embed long texts in a running service: docs/performance.md has what it found."""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from statistics import median
from threading import Event, Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stack import DATA, about_machine, datasets

from shoal import HttpClient

#: Tokens of a chunk, and how many of them its neighbour has too.
CHUNKS = {"chunk_tokens": 200, "chunk_overlap": 20}

#: Questions asked about each article.
NUM_QUESTIONS = 5

#: The ways to embed a text, and their options.
WAYS: dict[str, dict[str, Any]] = {
    "its end cut off": {},
    "its beginning cut off": {"truncation_side": "left"},
    "mean of its chunks": CHUNKS,
    "each chunk": CHUNKS | {"output": "chunks"},
}

#: Longest time for a job, in seconds.
PATIENCE_S = 3_600.0


def seconds(act: Callable[[], object]) -> float:
    """Return how long it takes."""
    started_s = time.perf_counter()
    act()
    return time.perf_counter() - started_s


def latencies_ms(http: HttpClient, headlines: Sequence[str], is_over: Event) -> list[float]:
    """Embed headlines one after the other until it is over, or there are no more; return how long each took."""
    found = []
    for headline in headlines:
        if is_over.is_set():
            break
        found.append(1_000 * seconds(lambda: http.embed(headline)))  # noqa: B023
        is_over.wait(0.05)
    return found


def measure_times(http: HttpClient, num_chars: int) -> None:
    """Print the time of a long text in each way, and that of headlines meanwhile."""
    articles, headlines = datasets().long_documents(), datasets().abc_headlines()
    text = "\n\n".join(articles * (1 + num_chars // sum(map(len, articles))))[:num_chars]
    alone = latencies_ms(http, headlines[:100], Event())
    print("\n| the text | seconds | tokens | headlines meanwhile, ms: median | longest |\n|---|---|---|---|---|")
    print(f"| none | | | {median(alone):.1f} | {max(alone):.1f} |")
    for n, (way, options) in enumerate(list(WAYS.items())[:3], 1):
        meanwhile: list[float] = []
        is_over = Event()
        own = headlines[n * 20_000 : (n + 1) * 20_000]
        asking = Thread(target=lambda: meanwhile.extend(latencies_ms(http, own, is_over)))  # noqa: B023
        asking.start()
        started_s = time.perf_counter()
        reply = http.submit("embed", [text], lane="bulk", **options).result(PATIENCE_S)
        taken_s = time.perf_counter() - started_s
        is_over.set()
        asking.join()
        print(f"| {way} | {taken_s:.1f} | {sum(reply.tokens):,} | {median(meanwhile):.1f} | {max(meanwhile):.1f} |")


def measure_accuracy(http: HttpClient) -> None:
    """Print how many questions find the article that they are about, for each way to embed the articles."""
    articles: list[str] = []
    questions: list[tuple[int, str]] = []
    for document in json.loads((DATA / "covid_qa/200423_covidQA.json").read_text("utf-8"))["data"]:
        for paragraph in document["paragraphs"]:
            questions += [(len(articles), qa["question"]) for qa in paragraph["qas"][:NUM_QUESTIONS]]
            articles.append(paragraph["context"])
    wanted = np.array([number for number, _ in questions])
    asked = np.asarray(http.embed([question for _, question in questions]))
    print(f"\n{len(questions)} questions, {len(articles)} articles")
    print("\n| the articles | vectors | found first | of the first 5 |\n|---|---|---|---|")
    for way, options in WAYS.items():
        vectors, owners = vectors_of(http, articles, options)
        scores = asked @ vectors.T
        best = np.stack([scores[:, owners == number].max(axis=1) for number in range(len(articles))], axis=1)
        ranks = (best > best[np.arange(len(wanted)), wanted][:, None]).sum(axis=1)
        print(f"| {way} | {len(vectors):,} | {np.mean(ranks < 1):.1%} | {np.mean(ranks < 5):.1%} |")


def vectors_of(
    http: HttpClient, texts: Sequence[str], options: dict[str, Any]
) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """Return the vectors of the texts in this way, and the number of the text of each."""
    reply = http.submit("embed", texts, lane="bulk", **options).result(PATIENCE_S)
    assert reply.vectors is not None
    counts = [1] * len(texts) if reply.chunks is None else [len(part) for part in reply.chunks]
    return reply.vectors, np.repeat(np.arange(len(texts)), counts)


def main() -> None:
    """Print Markdown: the machine, and both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?", default="http://localhost:8080")
    parser.add_argument("--chars", type=int, default=10_000_000, help="characters of the long text")
    args = parser.parse_args()
    print(json.dumps(about_machine()))
    with HttpClient(args.url, timeout_s=PATIENCE_S) as http:
        measure_accuracy(http)
        measure_times(http, args.chars)


if __name__ == "__main__":
    main()
