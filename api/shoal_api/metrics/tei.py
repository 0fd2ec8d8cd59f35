"""Shoal's metrics under Text Embeddings Inference's names, for dashboards and autoscalers that know these names."""

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

#: Last parts of the routes that embed or compare texts, in all protocols. A protocol may be mounted below any path, so
#: only the last part of a route is compared. The route `/` has an empty last part.
_LAST_PARTS = frozenset(
    (
        *("embed", "embed_all", "similarity", "", "rerank", "embeddings", "vectors", "predict"),
        *("json_embed", "orjson_embed", "raw_embed"),
    )
)


def tei_metrics(families: Iterable[Metric]) -> Iterator[Metric]:
    """Yield the metrics, made from Shoal's own. They have no type, because the counters do not end with `_total`."""
    found = {family.name: family.samples for family in families}
    requests = [sample for sample in found.get("shoal_http_request_seconds", ()) if _embeds(sample)]
    counted = [sample for sample in requests if sample.name.endswith("_count")]
    failed: Counter[str] = Counter()
    for sample in counted:
        if word := _failure(int(sample.labels["status"])):
            failed[word] += int(sample.value)
    batches = [sample for sample in found.get("shoal_http_batches", ()) if _embeds(sample)]
    yield _by_method("te_request_count", "Requests to embed or compare texts.", counted, batches)
    answered = [[sample for sample in group if _is_answered(sample)] for group in (counted, batches)]
    yield _by_method("te_request_success", "Those that were answered.", *answered)
    failures = Metric("te_request_failure", "Those that were answered with an error.", "unknown")
    for word in ("validation", "overloaded", "inference"):
        failures.add_sample(failures.name, {"err": word}, failed[word])
    yield failures
    yield _durations([sample for sample in requests if _is_answered(sample)])
    if "shoal_lane_texts" in found:
        waiting = Metric("te_queue_size", "Texts that wait or are being embedded, of all lanes.", "unknown")
        waiting.add_sample(waiting.name, {}, _total(found["shoal_lane_texts"]))
        yield waiting


def _embeds(sample: Sample) -> bool:
    """Return True for a count or time of requests that embed or compare texts, but not for a `_created` time."""
    route, method = sample.labels.get("route", ""), sample.labels.get("method", "POST")
    return method == "POST" and route.rpartition("/")[2] in _LAST_PARTS and not sample.name.endswith("_created")


def _is_answered(sample: Sample) -> bool:
    return int(sample.labels["status"]) < 400


def _total(samples: Iterable[Sample]) -> float:
    return sum(sample.value for sample in samples)


def _failure(status: int) -> str:
    """Return the word for an error with this status, or an empty text for a status below 400."""
    if status == 429:
        return "overloaded"
    return "" if status < 400 else "inference" if status >= 500 or status == 424 else "validation"


def _by_method(name: str, meaning: str, counted: Iterable[Sample], batches: Iterable[Sample]) -> Metric:
    """Return the numbers of requests with one text and with several. A request with unread texts counts as one text."""
    metric, num_batches = Metric(name, meaning, "unknown"), _total(batches)
    metric.add_sample(name, {"method": "single"}, _total(counted) - num_batches)
    metric.add_sample(name, {"method": "batch"}, num_batches)
    return metric


def _durations(answered: Iterable[Sample]) -> Metric:
    """Return one histogram of the times to answer, for all routes and statuses together."""
    sums: dict[tuple[str, str], float] = {}
    for sample in answered:
        key = (sample.name.rpartition("_")[2], sample.labels.get("le", ""))
        sums[key] = sums.get(key, 0.0) + sample.value
    metric = Metric("te_request_duration", "Time to answer those that were answered, in seconds.", "histogram")
    for (suffix, limit), value in sums.items():
        metric.add_sample(f"{metric.name}_{suffix}", {"le": limit} if limit else {}, value)
    return metric
