"""MiniLM in one thread on one core: Shoal's engines and other engines, each in a separate process.

The peers are not dependencies: `scripts/encoders` makes an environment with them. A missing peer is left out. The
peers' files are made from the same weights, and are kept in the home folder.
"""

import itertools
import os
import resource
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray
from stack import HOME, datasets, model

from benchmarks.engine import Embed, Engine, started
from benchmarks.one_core.peers import OPENERS, REFERENCE, prepared, source
from benchmarks.plan import Plan, say
from benchmarks.trial import Figures, Row

#: Numbers of tokens in a text, special tokens included; numbers of texts in a call; and the number of different texts
#: of each length.
TOKENS, BATCHES, NUM_TEXTS = (10, 128, 256), (1, 8, 64), 128

#: When vectors are compared: the number of texts in a call, and the number of compared texts of each length.
BATCH, NUM_COMPARED = 64, 16

#: Number of texts of mixed lengths from which the ranges of 8-bit activations are measured.
NUM_EXAMPLES = 600

#: Length of a trial, as a share of the length of a run against a server. A trial has at least one call.
SHARE = 0.125

#: The figure that is compared.
RATE = "texts/s of processor time"


def run(plan: Plan) -> list[Row]:
    """Embed the same texts with each engine in turns; return the rates, cosines to fp32 and STS-B."""
    folder = prepared(HOME / "bench" / f"encoders-{model().digest[:8]}", plan.texts.mixed(NUM_EXAMPLES))
    of_length = {tokens: texts_of(tokens, [*plan.texts.headlines, *plan.texts.articles]) for tokens in TOKENS}
    with ExitStack() as running:
        engines: dict[str, Engine] = {}
        for name, (package, open_engine) in OPENERS.items():
            try:
                if not find_spec(package):
                    raise ModuleNotFoundError(f"{package} is not installed")
                engines[name] = running.enter_context(started(name, 1, open_engine, folder))
                engines[name].call(pin)
            except Exception as error:  # any error of a library that is not part of Shoal
                engines.pop(name, None)
                say(f"encoders: {name} is left out: {error}")
        quality = _quality(engines, [text for texts in of_length.values() for text in texts[:NUM_COMPARED]])
        cases = itertools.product(of_length.items(), BATCHES, engines.values())
        trials = [engine.trial(f"{tokens} x {size}", size, texts, SHARE) for (tokens, texts), size, engine in cases]
        measured = plan.interleave("encoders", trials)
        memory = {name: engine.call(_peak_mb) for name, engine in engines.items()}
    return [_row(name, measured, {"peak MB": memory[name], **quality[name]}) for name in engines]


def texts_of(num_tokens: int, sources: Sequence[str]) -> list[str]:
    """Return parts of the texts that have this number of tokens for the model, at most one part of each text."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(source() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    found: list[str] = []
    for text in sources:
        offsets = tokenizer.encode(text[: num_tokens * 16], add_special_tokens=False).offsets[: num_tokens - 2]
        part = text[: offsets[-1][1]] if offsets else ""
        if len(tokenizer.encode(part).ids) == num_tokens:
            found.append(part)
        if len(found) == NUM_TEXTS:
            break
    return found


def _quality(engines: Mapping[str, Engine], texts: Sequence[str]) -> dict[str, Figures]:
    """Return each engine's cosines to the first peer, the original in fp32, and its score on STS-B."""
    from scipy.stats import spearmanr  # this import takes a second

    pairs = datasets().stsb_dev()
    sides = [pair[side] for side in (0, 1) for pair in pairs]
    found = {name: engine.call(_vectors, [*sides, *texts]) for name, engine in engines.items()}
    figures: dict[str, Figures] = {}
    for name, vectors in found.items():
        cosines = (vectors * found[REFERENCE]).sum(axis=1)
        products = vectors[: len(pairs)] * vectors[len(pairs) : 2 * len(pairs)]
        figures[name] = {
            "mean cosine x 100": 100 * float(cosines.mean()),
            "lowest": 100 * float(cosines.min()),
            "STS-B x 100": 100 * float(spearmanr(products.sum(axis=1), [score for *_, score in pairs]).statistic),
        }
    return figures


def _row(name: str, measured: Sequence[Row], others: Figures) -> Row:
    """Return a row with the median of each case of an engine, and the largest spread of a case."""
    own = [row for row in measured if row.target == name]
    rates = {row.case: row.median(RATE) for row in own}
    spread = max((max(row.figures[RATE]) / min(row.figures[RATE]) - 1) * 100 for row in own)
    figures = {figure: [value] for figure, value in {**rates, **others, "spread %": spread}.items()}
    return Row("encoders", "texts/s: tokens x batch", name, figures)


def pin(_: Embed) -> None:
    """Keep all threads of the process on one core, the last."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {max(os.sched_getaffinity(0))})


def _vectors(embed: Embed, texts: Sequence[str]) -> NDArray[np.float32]:
    return np.concatenate([np.array(embed(texts[n : n + BATCH]), np.float32) for n in range(0, len(texts), BATCH)])


def _peak_mb(_: Embed) -> float:
    """Return the peak memory of the process, with its libraries and its Python."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
