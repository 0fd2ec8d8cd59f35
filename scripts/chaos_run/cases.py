"""The cases that the clients ask: drawn from a seed, so that the same seed asks the same."""

import string
from dataclasses import dataclass
from random import Random

#: How a job gets in, and what share of the ordinary ones does: `wait` and `submit` are HTTP, `call` and `handle` are
#: `shoal.Client`, `plain` and `address` are a Redis client with the script of docs/protocol.md, which reads the reply
#: from the job's result list or at an address of its own.
ROUTES = {"wait": 30, "submit": 28, "call": 14, "handle": 10, "plain": 10, "address": 8}

#: What is odd about some jobs, one in how many it is, and the routes that they go by.
ODD = {
    "crash": (5_000, ("submit", "plain")),
    "out of memory": (5_000, ("submit", "plain")),
    "stall": (10_000, ("submit", "plain")),
    "malformed": (400, ("plain",)),
    "cancelled": (50, ("submit",)),
    "expired": (50, ("plain",)),
    "leaving": (50, ("wait",)),
}

#: Kinds of poison, and the word that their texts begin with: a worker that computes one crashes in native code, is
#: killed as the system kills when memory is short, or hangs.
POISON = {"crash": "crash", "out of memory": "exhaust", "stall": "hang"}

#: A run as long as this has stalls too: each takes three times the workers' limit until it is found out.
LONG_S = 100.0

#: Words of all texts, plain enough for any model.
WORDS = (
    *("storm", "europe", "climate", "change", "rain", "market", "falls", "rises", "river", "night", "city", "train"),
    *("music", "winter", "doctor", "garden", "paper", "window", "coast", "bridge", "engine", "school", "salt", "wool"),
)

#: Texts that come again and again, so that the cache has its part, and the share of texts that are of those.
NUM_HOT, SHARE_HOT = 40, 0.15

#: Jobs start in bursts, so that lanes fill and empty.
BURST_S = 1.0


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to ask: `kind` is `good` or what is odd about it; it is asked `at_s` after the start."""

    number: int
    kind: str
    route: str
    op: str
    texts: tuple[str, ...]
    lane: str
    at_s: float


def draw(seed: int, num_cases: int, seconds: float) -> list[Case]:
    """Return the cases of a run, in the order in which they are asked."""
    random = Random(seed)
    odd = _odd_ones(num_cases, ODD if seconds > LONG_S else {kind: ODD[kind] for kind in ODD if kind != "stall"})
    return [_case(random, number, number * seconds / num_cases, odd.get(number, "good")) for number in range(num_cases)]


def _odd_ones(num_cases: int, kinds: dict[str, tuple[int, tuple[str, ...]]]) -> dict[int, str]:
    """Return the numbers of odd cases, evenly spread, and what is odd about them: of each at least one."""
    odd: dict[int, str] = {}
    for place, (kind, (every, _)) in enumerate(kinds.items()):
        every = min(every, num_cases)
        odd |= {number: kind for number in range(every // 2 + place, num_cases, every)}
    return odd


def _case(random: Random, number: int, at_s: float, kind: str) -> Case:
    routes = ODD[kind][1] if kind in ODD else ()
    route = random.choice(routes) if routes else random.choices(list(ROUTES), list(ROUTES.values()))[0]
    op = "search" if random.random() < 0.35 and kind not in ("malformed", *POISON) else "embed"
    lane = "bulk" if op == "embed" and route not in ("wait", "call") and random.random() < 0.4 else "interactive"
    num_texts = random.choice((2, 4, 8)) if lane == "bulk" else random.choice((1, 1, 1, 2))
    texts = tuple(_text(random, kind, f"{number}.{n}", number * 8 + n) for n in range(num_texts))
    return Case(number, kind, route, op, texts, lane, at_s // BURST_S * BURST_S)


def _text(random: Random, kind: str, name: str, number: int) -> str:
    if kind in ("good", "leaving") and random.random() < SHARE_HOT:
        return " ".join(Random(random.randrange(NUM_HOT)).sample(WORDS, 4))
    words = random.choices(WORDS, k=random.randint(2, 6))
    return " ".join([*([POISON[kind]] if kind in POISON else []), in_letters(number), *words])


def in_letters(number: int) -> str:
    """Return a word of its own for each number, of four letters or more: tiny models know no other signs."""
    letters = ""
    while number or len(letters) < 4:
        number, digit = divmod(number, 26)
        letters += string.ascii_lowercase[digit]
    return letters
