// Tables of the pool: its lanes, its workers, the jobs that were answered last, and long jobs.

import { html } from "../vendor/lit-html.js";
import { ago, amount, duration, percent, size } from "./quantity.js";
import { section, table } from "./table.js";
import { STEPS } from "./timing.js";

/** Draw the lanes. */
export function laneTable(lanes) {
  const columns = [
    ["Lane", ({ lane }) => lane],
    ["Jobs", (lane) => amount(lane.num_jobs), "number"],
    ["Texts", (lane) => amount(lane.num_texts), "number"],
    ["Oldest", (lane) => duration(lane.num_jobs ? lane.oldest_age_s : null), "number"],
  ];
  return section("Lanes", "", table(columns, lanes, "Lanes"));
}

/** Draw the workers with their rates by id; `now` is in Unix seconds. */
export function workerTable(workers, rates, now) {
  const columns = [
    ["Worker", ({ state, id }) => html`${stateOf(state)} <span class="name">${id}</span>`],
    ["Model", model],
    ["Texts a second", (worker) => workerRate(worker, rates[worker.id]), "number"],
    ["Busy", ({ id }) => share(rates[id]?.busy), "number"],
    ["Memory", (worker) => size(worker.memory_bytes), "number"],
    ["Heartbeat", ({ written_at }) => ago(written_at, now), "number"],
  ];
  return section("Workers", "", table(columns, workers, "Workers"));
}

function stateOf(state) {
  return html`<span class="state" data-state=${state}>${state}</span>`;
}

function model({ model, engine, precision, threads }) {
  const run = [engine, precision, threads && `${threads} thread${threads > 1 ? "s" : ""}`].filter(Boolean).join(" · ");
  return html`<span class="name">${model ?? "–"}</span> <span class="hint">${run}</span>`;
}

function workerRate({ texts_per_s: most }, rates) {
  return html`${amount(rates?.computed)} ${rates && most > 0 ? html`<span class="hint">of ${amount(most)} when busy</span>` : ""}`;
}

function share(value) {
  return html`${percent(value)} <span class="bar" aria-hidden="true"><span .style=${`--share:${Math.min(1, value ?? 0)}`}></span></span>`;
}

/** Draw the jobs that were answered last; with `hasClients`, the table has a column of clients. */
export function recentTable(jobs, now, hasClients) {
  if (!jobs.length) return section("Recent jobs", "", html`<p class="hint">No job was answered yet. A search will show here.</p>`);
  const columns = [
    ["Job", ({ op, error, id }) => html`${op ?? "unreadable"} ${error ? html`<span class="failure">${error}</span>` : ""} <code class="name">${id ?? "–"}</code>`],
    ["Answered", (job) => ago(job.ended_at, now)],
    ...(hasClients ? [["From", ({ client }) => html`<span class="name">${client || "–"}</span>`]] : []),
    ["Lane", ({ lane }) => lane],
    ["Texts", (job) => html`${amount(job.num_texts)} ${job.num_cached ? html`<span class="hint">${amount(job.num_cached)} cached</span>` : ""}`, "number"],
    ["Time", jobTime],
  ];
  return section("Recent jobs", "The last few of each worker, the newest first.", html`
    <div class="scroll" tabindex="0" role="region" aria-label="Recent jobs">${table(columns, jobs, "Recent jobs")}</div>
  `);
}

/** Draw the time of a job, with a bar of its steps. */
function jobTime(job) {
  const steps = STEPS.map((step) => [step, job.timings[`${step}_s`] ?? 0]);
  const whole = Math.max(job.total_s, 1e-6);
  const told = steps.filter(([, seconds]) => seconds > 0).map(([step, seconds]) => `${step} ${duration(seconds)}`).join(", ");
  return html`
    <span class="time">
      <span>${duration(job.total_s)}</span>
      <span class="bar" role="img" aria-label=${told} title=${told}>
        ${steps.map(([step, seconds]) => html`<span data-step=${step} .style=${`--share:${Math.min(1, seconds / whole)}`}></span>`)}
      </span>
    </span>
  `;
}

/** Draw the long jobs, if there are any. */
export function longJobTable(jobs, now) {
  if (!jobs.length) return "";
  const columns = [
    ["Job", ({ kind, id }) => html`${kind} <code class="name">${id}</code>`],
    ["State", ({ status, error }) => html`${stateOf(status)} ${error ? html`<span class="failure" title=${error.message}>${error.code}</span>` : ""}`],
    ["Progress", jobProgress],
    ["Submitted", (job) => ago(job.submitted_at, now)],
  ];
  return section("Long jobs", "", table(columns, jobs, "Long jobs"));
}

function jobProgress({ status, progress, note }) {
  const rate = progress.rows_per_s ? `${amount(progress.rows_per_s)} rows a second` : "";
  const left = progress.eta_s ? `${duration(progress.eta_s)} left` : "";
  const told = [progress.step, `${amount(progress.rows)} rows`, rate, left, note].filter(Boolean).join(" · ");
  const fraction = status === "done" ? 1 : progress.fraction;
  return html`
    ${fraction == null ? "" : html`<progress max="1" value=${fraction} aria-label="progress"></progress> ${percent(fraction)}`}
    <span class="hint">${told}</span>
  `;
}
