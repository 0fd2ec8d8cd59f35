"""The command `shoal plan`: how many workers, API processes and Redis servers a rate of requests needs."""

import json
import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from math import ceil
from typing import Any, NamedTuple

import click

from shoal.broker.embedded import memory_mb
from shoal.cli.options import REDIS_SETTINGS, settings_options
from shoal.cli.output import echo
from shoal.errors import BadSetting, NotReady, Unavailable
from shoal.settings import Settings

#: Microseconds of processor time of a request in a worker (without passes), in the API and in Redis, and the page that
#: reports these measurements. Resident bytes of an API process, from docs/performance.md.
JOB_US, API_US, REDIS_US, SOURCE = 170, 330, 90, "docs/experiments.md"
API_BYTES = 86 * 10**6

#: Numbers of texts in measured passes, and the least number of passes, which is above `capacity.MIN_PASSES`.
NUM_TEXTS, NUM_PASSES = (1, 2, 4, 8, 16, 32), 60

_US = click.IntRange(0, 10**9)


class Measured(NamedTuple):
    """The `rounds` of workers of one kind, their source, and the threads and the memory of a worker.

    `job_us` is the part of a request's time that the rounds do not include.
    """

    rounds: Sequence[float] = ()
    source: str = ""
    threads: int = 1
    memory_bytes: int = 0
    job_us: int = 0


def _seconds(context: click.Context, parameter: click.Parameter, text: str) -> float:
    if not (found := re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(m?)s", text)):
        raise click.BadParameter(f"{text!r} is not a time: write it like 50ms or 0.5s")
    return float(found[1]) / (1_000 if found[2] else 1)


@click.command(short_help="How many processes a rate of requests needs.")
@click.option("--rate", type=click.IntRange(1, 10**7), required=True, help="Requests a second, each with one text.")
@click.option("--p99", required=True, callback=_seconds, help="Longest wait of 99 % of the requests, such as 50ms.")
@click.option("--tokens", type=click.IntRange(3, 10**5), required=True, help="Tokens of a text, special ones included.")
@click.option("--pass-us", type=_US, help="Microseconds of a pass without texts.  [default: measured]")
@click.option("--token-us", type=_US, help="Microseconds of a token in a pass.  [default: measured]")
@click.option("--api-us", type=_US, help=f"Microseconds of a request in the API.  [default: {API_US}]")
@click.option("--redis-us", type=_US, help=f"Microseconds of a request in Redis.  [default: {REDIS_US}]")
@click.option("--local", is_flag=True, help="Measure passes in this process, even if a pool answers.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@settings_options(*REDIS_SETTINGS, "model", "engine", "precision", "max_batch_tokens")
def plan(
    settings: Settings, rate: int, p99: float, tokens: int, local: bool, as_json: bool, **given: int | None
) -> None:
    """Say how many workers, API processes and Redis servers a rate needs, and which reaches its limit first.

    The costs of passes come from the running pool, whose texts should be as long as --tokens; without a pool, passes
    are measured in this process, with one thread. Requests that come at random are simulated.
    """
    from shoal_workers import capacity  # imported here, because it loads numpy

    measured = Measured()
    if given["pass_us"] is None or given["token_us"] is None:
        measured = (None if local else _of_pool(settings)) or _of_this_machine(settings, tokens)
    pass_s, token_s = capacity.fit(measured.rounds) if measured.rounds else (0.0, 0.0)
    costs = {
        "pass_us": (1e6 * pass_s, measured.source),
        "token_us": (1e6 * token_s, measured.source),
        "api_us": (API_US, SOURCE),
        "redis_us": (REDIS_US, SOURCE),
        **({"job_us": (measured.job_us, SOURCE)} if measured.job_us else {}),
        **{name: (us, "the flag") for name, us in given.items() if us is not None},
    }
    pass_s, token_s, api_s, redis_s = (costs[name][0] / 1e6 for name in ("pass_us", "token_us", "api_us", "redis_us"))
    text_s, max_pass = token_s * tokens + measured.job_us / 1e6, max(1, settings.max_batch_tokens // tokens)
    made = capacity.plan(rate, p99, capacity.Costs(pass_s, text_s, api_s, redis_s, max_pass))
    needs = {
        "workers": (measured.threads, measured.memory_bytes),
        "api": (1, API_BYTES),
        "redis": (1, memory_mb(settings) * 2**20),
    }
    told = asdict(made) | {
        "processors": {part: made.numbers[part] * threads for part, (threads, _) in needs.items()},
        "memory_bytes": {part: made.numbers[part] * size or None for part, (_, size) in needs.items()},
        "breaks_next": min(made.limits, key=lambda part: made.limits[part]),
        "costs": {name: {"value": us, "from": source} for name, (us, source) in costs.items()},
    }
    click.echo(json.dumps(told, indent=2)) if as_json else _print(told)


def _print(told: Mapping[str, Any]) -> None:
    """Print the plan for people."""
    echo(f"{'':8}{'number':>8}{'processors':>12}{'memory':>12}  enough to")
    for part, processors in told["processors"].items():
        size, limit = told["memory_bytes"][part], told["limits"].get(part)
        row = f"{part:8}{told['numbers'][part]:>8,}{processors:>12,}{f'{size / 2**30:,.1f} GiB' if size else '?':>12}  "
        row += f"{limit:,.0f} requests/s" if limit else "any rate"
        echo(row + (", and breaks next" if part == told["breaks_next"] else ""))
    if (num := told["numbers"]["redis"]) > 1:
        echo(f"each of the {num:,} Redis servers has a pool of its own, with as many workers")
    echo(f"half of the requests take up to {1e3 * told['p50_s']:,.1f} ms, 99 % up to {1e3 * told['p99_s']:,.1f} ms")
    for name, cost in told["costs"].items():
        echo(f"{name}: {cost['value']:,.1f}, from {cost['from']}")


def _of_pool(settings: Settings) -> Measured | None:
    """Return the measurements of the commonest kind of worker of the running pool; None if no worker is ready."""
    from shoal.broker.broker import Broker
    from shoal.queue.pool import Pool

    try:
        with closing(Broker.connect(settings.redis_address)) as broker:
            ready = Pool(broker, settings.keys).ready().values()
        beats = [about for about in ready if about.get("rounds")]  # a sleeping worker has none
        if not beats:
            raise NotReady("no worker is ready")
    except (NotReady, Unavailable) as error:
        click.echo(f"passes are measured in this process, because no pool answers: {error.message}", err=True)
        return None
    kinds = defaultdict[tuple[str, str, int], list[Mapping[str, Any]]](list)
    for about in beats:
        kinds[about.get("engine", ""), about.get("precision", ""), about.get("threads", 1)].append(about)
    (engine, precision, threads), alike = max(kinds.items(), key=lambda kind: len(kind[1]))
    rounds = [sum(sums) for sums in zip(*(about["rounds"] for about in alike), strict=True)]
    source = f"{len(alike):,} workers of the pool ({engine}, {precision}, threads: {threads})"
    return Measured(rounds, source, threads, sum(about.get("memory_bytes") or 0 for about in alike) // len(alike))


def _of_this_machine(settings: Settings, tokens: int) -> Measured:
    """Return the processor time of passes in this process, with one thread. Raises BadSetting."""
    from shoal_workers.process.processors import limit_native_threads

    limit_native_threads(1, 1)
    from shoal_workers.encoding.encoder import TokenizedText
    from shoal_workers.encoding.tokenizer import Tokens
    from shoal_workers.process.measurements import Measurements, resident_bytes
    from shoal_workers.service.service import open_encoder

    encoder, measurements = open_encoder(settings, 1), Measurements()
    model, engine = encoder.model, encoder.engine
    if tokens > model.max_tokens:
        raise BadSetting(f"--tokens is {tokens:,}, and {model.name} reads at most {model.max_tokens:,}: name fewer")
    start, word, *_ = encoder.tokenize(["storm storm"])[0].ids
    sizes = [(1, tokens // 2), *((n, tokens) for n in NUM_TEXTS if n == 1 or n * tokens <= settings.max_batch_tokens)]
    for trial in range(1 + ceil(NUM_PASSES / len(sizes))):
        for num, length in sizes:
            texts = [TokenizedText(Tokens((start, *[word] * (length - 1)))) for _ in range(num)]
            begun_s = time.process_time()
            encoder.encode(texts)
            if trial:  # the first trial, which compiles code, does not count
                measurements.add_round(num * length, time.process_time() - begun_s)
    source = f"processor time here ({engine.name}, {engine.precision}, threads: 1)"
    return Measured(measurements.rounds, source, 1, resident_bytes() or 0, JOB_US)
