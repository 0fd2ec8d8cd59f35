// Pool: what the lanes hold and the workers do, live, with the jobs that were answered and those that could not be.

import { html } from "../vendor/lit-html.js";
import { DeadLetters } from "../parts/dead_letters.js";
import { notice } from "../parts/notice.js";
import { poolCharts } from "../parts/pool_charts.js";
import { laneTable, longJobTable, recentTable, workerTable } from "../parts/pool_tables.js";
import { amount, clock, duration, percent } from "../parts/quantity.js";

export const title = "Pool";

/** Time that the charts show, in seconds. */
const KEPT_S = 600;

let context = null;
let letters = null;
let stop = null;
let pool = null;
let error = null;

/** Follow the pool. */
export function enter(given) {
  context = given;
  letters ??= new DeadLetters(given.api, given.render);
  stop?.();
  stop = given.api.stream("v1/pool/events", receive);
}

/** Follow it no longer. */
export function leave() {
  stop?.();
  stop = null;
}

function receive({ event, data }) {
  if (event === "pool") {
    pool = { ...data, history: merged(pool?.history, data.history, data.time - KEPT_S) };
    error = null;
  } else {
    error = data;
    if (data.status === 401 || data.status === 403) leave(); // until there is another key
  }
  context.render();
}

/**
 * Return the samples of both histories that are later than that time. The first event after a break has all of them;
 * earlier samples that are later than new ones are of a clock that was set back.
 */
function merged(before, now, since) {
  if (!before?.time.length) return now;
  const kept = before.time.map((time) => time > since && !(time >= now.time[0]));
  return joined(before, now, (values) => values.filter((_, n) => kept[n]));
}

function joined(before, now, keep) {
  const names = Object.keys(now);
  return Object.fromEntries(names.map((name) => {
    const [old, fresh] = [before[name], now[name]];
    return [name, Array.isArray(fresh) ? [...keep(old), ...fresh] : joined(old, fresh, keep)];
  }));
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

/** Draw why nothing new comes, if so. */
function trouble() {
  if (error && !pool) return notice(error);
  const told = error?.code === "away" ? "The connection to the API is broken" : (error ?? pool?.error)?.message;
  if (!told) return "";
  return html`<p class="stale" role="alert">${told}. ${pool.time ? `What follows is from ${clock(pool.time)}.` : ""} This page keeps trying.</p>`;
}

function content() {
  const { lanes, workers, history, num_dead: numDead, recent, dead, long_jobs: longJobs, time, every_s: everyS } = pool;
  if (!time) return "";
  return html`
    ${numbers()}
    ${poolCharts(history, everyS, KEPT_S)}
    ${laneTable(lanes)}
    ${workers.length ? workerTable(workers, time) : ""}
    ${longJobTable(longJobs, time)}
    ${recentTable(recent, time, pool.is_admin)}
    ${letters.view(dead, numDead, time)}
  `;
}

/** Draw what one looks at first. */
function numbers() {
  const { history, workers, lanes, num_dead: numDead } = pool;
  const last = (values) => values.at(-1);
  const [numReady, numWorkers] = [workers.filter(({ state }) => state === "ready").length, last(history.num_workers)];
  const found = [
    ["jobs a second", amount(last(history.jobs_per_s))],
    ["texts a second", amount(last(history.computed_texts_per_s) + last(history.cached_texts_per_s))],
    ["wait, 95 % of interactive jobs", duration(lanes[0]?.wait_p95_s)],
    ["of texts from the cache", percent(last(history.cache_hit_rate))],
    ["of the engines' time used", percent(last(history.busy))],
    [numWorkers > 1 ? `of ${numWorkers} workers ready` : "worker ready", amount(numReady), numReady < Math.max(1, numWorkers)],
    [numDead === 1 ? "dead letter" : "dead letters", amount(numDead), numDead > 0],
  ];
  return html`
    <ul class="numbers">
      ${found.map(([label, value, isBad]) => html`<li class="stat" ?data-bad=${isBad}><strong>${value}</strong> ${label}</li>`)}
    </ul>
  `;
}
