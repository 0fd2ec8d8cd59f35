// Pool: the lanes and the workers, live, with the jobs that were answered and long jobs.

import { html } from "../vendor/lit-html.js";
import { Meter } from "../parts/meter.js";
import { notice } from "../parts/notice.js";
import { poolCharts } from "../parts/pool_charts.js";
import { laneTable, longJobTable, recentTable, workerTable } from "../parts/pool_tables.js";
import { amount, clock, duration, percent } from "../parts/quantity.js";
import { answersJobs } from "../parts/service.js";
import { section } from "../parts/table.js";

export const title = "Pool";

/** Time that the charts show, in seconds. */
const KEPT_S = 600;

/** Pause before the pool is read again. */
const EVERY_S = 2;

let context = null;
let stop = null;
let pool = null;
let error = null;

const meter = new Meter();

/** The times, rates and lanes since the page was opened, the oldest first. */
let samples = [];

/** Read the pool again and again. */
export function enter(given) {
  context = given;
  leave();
  stop = new AbortController();
  follow(stop.signal);
}

/** Stop reading the pool. */
export function leave() {
  stop?.abort();
  stop = null;
}

async function follow(signal) {
  while (!signal.aborted) {
    try {
      keep(await context.api.get("v1/pool", { signal, timeoutMs: 20_000 }));
      error = null;
    } catch (failure) {
      if (signal.aborted) return;
      error = failure;
      if (error.status === 401 || error.status === 403) leave(); // until there is another key
    }
    context.render();
    await new Promise((resume) => setTimeout(resume, 1000 * EVERY_S));
  }
}

/** Keep a sample. Earlier samples with later times are dropped: the clock was set back. */
function keep(found) {
  const { time, lanes } = found;
  const rates = meter.measure(found);
  pool = { ...found, rates };
  samples = [...samples.filter((before) => before.time > time - KEPT_S && before.time < time), { time, rates, lanes }];
}

/** Draw the view. */
export function view() {
  return html`
    <div class="pool">
      <h1>The pool</h1>
      ${trouble()}
      ${pool ? content() : error ? "" : html`<p class="hint" role="status">Reading the pool …</p>`}
    </div>
  `;
}

/** Draw the reason if no new sample arrives. */
function trouble() {
  if (!error) return "";
  if (!pool) return notice(error);
  const told = error.code === "away" ? "The connection to the API is broken" : error.message;
  return html`<p class="stale" role="alert">${told}. What follows is from ${clock(pool.time)}. This page keeps trying.</p>`;
}

function content() {
  const { lanes, workers, num_dead: numDead, recent, long_jobs: longJobs, time, rates } = pool;
  return html`
    ${numbers()}
    ${poolCharts(samples, EVERY_S, KEPT_S)}
    ${laneTable(lanes)}
    ${workers.length ? workerTable(workers, rates.ofWorker, time) : ""}
    ${longJobTable(longJobs, time)}
    ${recentTable(recent, time, pool.is_admin)}
    ${numDead ? section("Dead letters", "", html`<p class="hint">There are ${numDead}. <code>shoal dead list</code> shows them.</p>`) : ""}
  `;
}

/** Draw the most important numbers. */
function numbers() {
  const { rates, workers, num_dead: numDead } = pool;
  const [numReady, numWorkers] = [workers.filter(answersJobs).length, workers.length];
  const found = [
    ["jobs a second", amount(rates.jobs)],
    ["texts a second", amount(rates.computed === null ? null : rates.computed + rates.cached)],
    ["mean wait of a job in its lane", duration(rates.steps.queue)],
    ["of texts from the cache", percent(rates.hits)],
    ["of the engines' time used", percent(rates.busy)],
    [numWorkers > 1 ? `of ${numWorkers} workers ready` : "worker ready", amount(numReady), numReady < Math.max(1, numWorkers)],
    [numDead === 1 ? "dead letter" : "dead letters", amount(numDead), numDead > 0],
  ];
  return html`
    <ul class="numbers">
      ${found.map(([label, value, isBad]) => html`<li class="stat" ?data-bad=${isBad}><strong>${value}</strong> ${label}</li>`)}
    </ul>
  `;
}
