"""The trials of `shoal bench` for a running service, and the texts that they send."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from shoal.bench import wrk
from shoal.bench.trial import Trial, load_trial
from shoal.errors import InvalidRequest, NotReady


def service_trials(url: str, texts: Sequence[str]) -> Iterator[Trial]:
    """Yield trials that embed and, if the service has an index, search, with 1 connection and with 64.

    Raises MissingExtra without wrk, and NotReady unless a ready Shoal answers at `url`.
    """
    wrk.find()
    _get(f"{url}/ready")
    names = [index["name"] for index in _get(f"{url}/v1/indexes")["indexes"]]
    name = "default" if "default" in names else next(iter(names), None)
    requests: dict[str, list[Mapping[str, Any]]] = {"embed": [{"inputs": text} for text in texts]}
    if name is not None:
        requests["search"] = [{"queries": text, "k": 5, "index": name} for text in texts]
    for operation, bodies in requests.items():
        encoded = [json.dumps(body).encode() for body in bodies]
        for connections in (1, 64):
            load = wrk.Load(f"{url}/{operation}", encoded, connections)
            yield load_trial(f"{operation}, {connections} connection{'s' * (connections > 1)}", "service", load)


def describe_service(url: str) -> dict[str, str]:
    """Return the service's version, model, engine, workers and indexes as lines by name."""
    info = _get(f"{url}/info")
    indexes = ", ".join(f"{name} ({about['count']:,} documents)" for name, about in info["indexes"].items())
    return {
        "service": f"{url}, Shoal {info['version']}",
        "model": f"{info['model']}, {info['engine']} {info['precision']}",
        "workers": str(info["workers_alive"]),
        "indexes": indexes or "none",
    }


def check_texts(texts: Sequence[str]) -> list[str]:
    """Return the texts without the empty ones, which no request takes.

    Raises InvalidRequest if none is left.
    """
    found = [text for text in texts if text.strip()]
    if not found:
        raise InvalidRequest("there are no texts to send: give a file with one text a line")
    return found


def sample() -> list[str]:
    """Return the headlines that ship with Shoal."""
    spec = find_spec("shoal_workers")  # found, not imported
    folders = (spec and spec.submodule_search_locations) or []
    with (Path(folders[0]) / "sample" / "headlines.csv").open(encoding="utf-8", newline="") as file:
        return [row["headline"] for row in csv.DictReader(file)]


def _get(url: str) -> Any:
    try:
        with urlopen(url, timeout=10) as response:  # noqa: S310 - the operator names the address
            return json.load(response)
    except (URLError, OSError, ValueError) as error:
        raise NotReady(f"{url} is no Shoal that is ready ({error}): start one with `shoal serve`") from error
