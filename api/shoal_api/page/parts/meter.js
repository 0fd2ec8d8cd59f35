// The rates of the pool, from the counters of its workers in one answer of the API after another.

import { STEPS } from "./timing.js";

/** Time over which rates are measured, in seconds. */
const WINDOW_S = 10;

/** A meter of the workers and of the API. It keeps their counters of the last seconds. */
export class Meter {
  #kept = new Map();

  /** Add an answer of the API; return the rates of the pool a second, and of each worker by its id. Unknown rates are null. */
  measure({ time, workers, api_cache_hits: hits }) {
    const ofApi = this.#rateOf("", time, { cache_hits: hits });
    const rates = workers.map(({ id, written_at: writtenAt, counters }) => [id, this.#rateOf(id, writtenAt, counters ?? {})]);
    const known = rates.map(([, rate]) => rate).filter(Boolean);
    const sum = (name) => (known.length || !workers.length ? known.reduce((all, rate) => all + rate(name), 0) : null);
    const busy = (rate) => Math.min(1, rate("busy_s")); // a forward pass counts in the interval in which it ends
    const [jobs, cached] = [sum("jobs"), sum("cache_hits") + (ofApi?.("cache_hits") ?? 0)];
    return {
      jobs,
      computed: sum("texts"),
      cached,
      hits: ratio(cached, cached + sum("cache_misses")),
      busy: ratio(known.reduce((all, rate) => all + busy(rate), 0), known.length),
      steps: Object.fromEntries(STEPS.map((step) => [step, ratio(sum(`${step}_s`), jobs)])),
      ofWorker: Object.fromEntries(rates.map(([id, rate]) => [id, rate && { computed: rate("texts"), busy: busy(rate) }])),
    };
  }

  /** Return a function that returns the rise of a counter a second; null if these are the first counters. */
  #rateOf(id, time, counters) {
    const kept = (this.#kept.get(id) ?? []).filter((one) => one.time > time - WINDOW_S && one.time < time);
    this.#kept.set(id, [...kept, { time, counters }]);
    const [before] = kept;
    return before ? (name) => Math.max(0, (counters[name] ?? 0) - (before.counters[name] ?? 0)) / (time - before.time) : null;
  }
}

function ratio(part, whole) {
  return whole ? part / whole : null;
}
