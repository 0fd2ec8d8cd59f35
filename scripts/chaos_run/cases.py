"""The cases that the clients ask, and their outcomes. The same seed draws the same cases."""

import string
from collections import Counter
from dataclasses import dataclass, field
from random import Random

#: Routes of a job, with the weight of each among ordinary jobs: `wait` and `submit` use HTTP, `call` and `handle` use
#: `shoal.Client`, `plain` and `address` use a Redis client with the script of docs/protocol.md, which reads the reply
#: from the job's result list or at its own address.
ROUTES = {"wait": 30, "submit": 28, "call": 14, "handle": 10, "plain": 10, "address": 8}

#: Kinds of odd jobs. For each kind: a number n, as one in n jobs is of this kind, and its routes.
ODD = {
    "crash": (5_000, ("submit", "plain")),
    "out of memory": (5_000, ("submit", "plain")),
    "stall": (10_000, ("submit", "plain")),
    "malformed": (400, ("plain",)),
    "unreadable": (400, ("plain",)),
    "huge": (800, ("wait", "submit", "call", "handle", "plain", "address")),
    "large reply": (800, ("submit", "call", "handle", "plain")),
    "slow reader": (400, ("wait", "submit")),
    "cancelled": (50, ("submit",)),
    "expired": (50, ("plain",)),
    "leaving": (50, ("wait",)),
}

#: Kinds of poison, and the word with which their texts begin. A worker that computes such a text crashes in native
#: code, is killed like a process that takes too much memory, or hangs.
POISON = {"crash": "crash", "out of memory": "exhaust", "stall": "hang"}

#: The strings that huge texts repeat without white space, and the length of a huge text: the longest allowed.
HUGE_SIGNS, HUGE_CHARS = ("x", "天", "氣候", "ab"), 2**20

#: Number of long texts, and of words in each: enough to fill a model's limit of tokens. Then the possible numbers of
#: long texts in a job with a large reply and in a job with a slow reader. Both ask for token vectors. With the default
#: model, 10 texts make a reply just below the limit of 4 MiB, and 12 texts exceed it.
NUM_LONG, LONG_WORDS, LARGE_TEXTS, SLOW_TEXTS = 12, 400, (10, 10, 10, 12), (1, 2)

#: Kinds of jobs that always embed and never search.
_EMBEDS = ("malformed", "unreadable", "huge", "large reply", "slow reader")

#: Length of the shortest run with stalls, in seconds. A stall is noticed after three times the workers' limit.
LONG_S = 100.0

#: Words of all texts, plain enough for any model.
WORDS = (
    *("storm", "europe", "climate", "change", "rain", "market", "falls", "rises", "river", "night", "city", "train"),
    *("music", "winter", "doctor", "garden", "paper", "window", "coast", "bridge", "engine", "school", "salt", "wool"),
)

#: Number of repeated texts, which the cache can answer, and their share of all texts.
NUM_HOT, SHARE_HOT = 40, 0.15

#: Jobs start in bursts, so that lanes fill and empty.
BURST_S = 1.0


@dataclass(frozen=True, slots=True)
class Case:
    """One request, which a client sends `at_s` after the start. `kind` is `good` or the kind of odd job.

    `output` is `vector` or `tokens`.
    """

    number: int
    kind: str
    route: str
    op: str
    texts: tuple[str, ...]
    lane: str
    at_s: float
    output: str = "vector"

    @property
    def is_keyed(self) -> bool:
        """True if the put has an idempotency key: all submits over HTTP, and half of `shoal.Client`'s submits."""
        return self.route == "submit" or (self.route == "handle" and self.number % 2 == 0)


def draw(seed: int, num_cases: int, seconds: float) -> list[Case]:
    """Return the cases of a run in the order of their times, with at least one of each odd kind."""
    random, odd = Random(seed), dict.fromkeys(range(num_cases), "good")
    for place, (kind, (every, _)) in enumerate(ODD.items()):
        if kind != "stall" or seconds > LONG_S:
            every = min(every, num_cases)
            odd |= dict.fromkeys(range(every // 2 + place, num_cases, every), kind)
    return [_case(random, number, number * seconds / num_cases, odd[number]) for number in range(num_cases)]


def _case(random: Random, number: int, at_s: float, kind: str) -> Case:
    route = random.choice(ODD[kind][1]) if kind in ODD else random.choices(list(ROUTES), list(ROUTES.values()))[0]
    op = "search" if random.random() < 0.35 and kind not in (*_EMBEDS, *POISON) else "embed"
    lane = "bulk" if op == "embed" and route not in ("wait", "call") and random.random() < 0.4 else "interactive"
    at_s = at_s // BURST_S * BURST_S
    if kind in ("large reply", "slow reader"):
        num_texts = random.choice(LARGE_TEXTS if kind == "large reply" else SLOW_TEXTS)
        texts = tuple(random.sample([_long_text(n) for n in range(NUM_LONG)], num_texts))
        return Case(number, kind, route, op, texts, lane, at_s, "tokens")
    num_texts = 1 if kind == "huge" else random.choice((2, 4, 8)) if lane == "bulk" else random.choice((1, 1, 1, 2))
    texts = tuple(_text(random, kind, number * 8 + n) for n in range(num_texts))
    return Case(number, kind, route, op, texts, lane, at_s)


def _long_text(number: int) -> str:
    return " ".join([in_letters(number), *Random(number).choices(WORDS, k=LONG_WORDS)])


def _text(random: Random, kind: str, number: int) -> str:
    if kind == "huge":
        beginning = " ".join([in_letters(number), *random.choices(WORDS, k=4)])
        return f"{beginning} {random.choice(HUGE_SIGNS) * HUGE_CHARS}"[:HUGE_CHARS]
    if kind in ("good", "leaving") and random.random() < SHARE_HOT:
        return " ".join(Random(random.randrange(NUM_HOT)).sample(WORDS, 4))
    words = random.choices(WORDS, k=random.randint(2, 6))
    return " ".join([*([POISON[kind]] if kind in POISON else []), in_letters(number), *words])


def in_letters(number: int) -> str:
    """Return a word of four or more letters, a different one for each number: tiny models know only letters."""
    letters = ""
    while number or len(letters) < 4:
        number, digit = divmod(number, 26)
        letters += string.ascii_lowercase[digit]
    return letters


@dataclass(slots=True)
class Outcomes:
    """Accepted jobs by id, a word for each answer and refusal, and the promises that were broken or kept too late.

    `puts` counts how often a case was put into Redis; `unfinished` has the numbers of cases that a client still asks.
    All threads may add to it, because a case belongs to one thread, and lists are only appended to.
    """

    accepted: dict[str, Case] = field(default_factory=dict)
    answered: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    puts: Counter[int] = field(default_factory=Counter)
    unfinished: set[int] = field(default_factory=set)

    def answer(self, case: Case, wrong: str, outcome: str = "right") -> None:
        """Record an answer; a `wrong` that is not empty breaks a promise."""
        self.answered.append("wrong" if wrong else outcome)
        if wrong:
            self.breach(case, wrong)

    def breach(self, case: Case, what: str) -> None:
        """Record a broken promise to a client."""
        self.broken.append(f"case {case.number} ({case.kind}, {case.route}): {what}")
