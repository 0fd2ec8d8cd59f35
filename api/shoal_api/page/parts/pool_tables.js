// Tables of the pool: its lanes, its workers, the jobs that were answered last, and long jobs.

import { html } from "../vendor/lit-html.js";
import { ago, amount, duration, percent, size } from "./quantity.js";

const STEPS = { queue_s: "queue", tokenize_s: "tokenize", encode_s: "encode", search_s: "search" };

/** Draw the lanes. */
export function laneTable(lanes) {
  return section("Lanes", "Waits are those of the last minute.", html`
    <table class="table stacked">
      <thead>
        <tr>
          <th scope="col">Lane</th>
          ${["Jobs", "Texts", "Oldest", "Wait, half", "Wait, 95 %", "Longest wait"].map((name) => html`<th scope="col" class="number">${name}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${lanes.map((lane) => html`
          <tr>
            <th scope="row">${lane.lane}</th>
            ${number("Jobs", amount(lane.num_jobs))}
            ${number("Texts", amount(lane.num_texts))}
            ${number("Oldest", lane.num_jobs ? duration(lane.oldest_age_s) : "–")}
            ${number("Wait, half", duration(lane.wait_p50_s))}
            ${number("Wait, 95 %", duration(lane.wait_p95_s))}
            ${number("Longest wait", duration(lane.wait_max_s))}
          </tr>
        `)}
      </tbody>
    </table>
  `);
}

/** Draw the workers; `now` is in Unix seconds. */
export function workerTable(workers, now) {
  return section("Workers", "", html`
    <table class="table stacked">
      <thead>
        <tr>
          <th scope="col">Worker</th>
          <th scope="col">Model</th>
          ${["Texts a second", "Busy", "Batch fill", "Memory", "Heartbeat"].map((name) => html`<th scope="col" class="number">${name}</th>`)}
        </tr>
      </thead>
      <tbody>${workers.map((worker) => workerRow(worker, now))}</tbody>
    </table>
  `);
}

function workerRow(worker, now) {
  const isGone = worker.state === "gone";
  return html`
    <tr data-state=${worker.state}>
      <th scope="row">
        <span class="state" data-state=${worker.state}>${worker.state}</span>
        <span class="name">${worker.id}</span>
      </th>
      <td data-label="Model">
        <span class="name">${worker.model ?? "–"}</span>
        <span class="hint">${[worker.engine, worker.precision, threads(worker.threads)].filter(Boolean).join(" · ")}</span>
      </td>
      ${number("Texts a second", amount(worker.computed_texts_per_s), worker.texts_per_s > 0 && !isGone ? `of ${amount(worker.texts_per_s)} when busy` : "")}
      ${isGone ? number("Busy", "–") : share("Busy", worker.busy)}
      ${isGone ? number("Batch fill", "–") : share("Batch fill", worker.batch_fill)}
      ${number("Memory", size(worker.memory_bytes))}
      ${number("Heartbeat", ago(isGone ? worker.seen_at : worker.written_at, now))}
    </tr>
  `;
}

/** Draw the jobs that were answered last; with `hasClients`, the table has a column of clients. */
export function recentTable(jobs, now, hasClients) {
  if (!jobs.length) return section("Recent jobs", "", html`<p class="hint">No job was answered yet. A search will show here.</p>`);
  const names = ["Answered", "Job", ...(hasClients ? ["From"] : []), "Lane", "Texts", "Time"];
  return section("Recent jobs", "The last few of each worker, the newest first.", html`
    <div class="scroll" tabindex="0" role="region" aria-label="Recent jobs">
      <table class="table stacked recent">
        <thead><tr>${names.map((name) => html`<th scope="col" class=${name === "Texts" ? "number" : ""}>${name}</th>`)}</tr></thead>
        <tbody>${jobs.map((job) => recentRow(job, now, hasClients))}</tbody>
      </table>
    </div>
  `);
}

function recentRow(job, now, hasClients) {
  const cached = job.num_cached ? `${amount(job.num_cached)} cached` : "";
  return html`
    <tr data-status=${job.status}>
      <td data-label="Answered">${ago(job.ended_at, now)}</td>
      <th scope="row">
        ${job.op ?? "unreadable"}
        ${job.error ? html`<span class="failure">${job.error}</span>` : ""}
        <code class="name">${job.id ?? "–"}</code>
      </th>
      ${hasClients ? html`<td data-label="From"><span class="name">${job.client || "–"}</span></td>` : ""}
      <td data-label="Lane">${job.lane}</td>
      ${number("Texts", amount(job.num_texts), cached)}
      <td data-label="Time">${jobTime(job)}</td>
    </tr>
  `;
}

/** Draw the time of a job, with a bar of its steps. */
function jobTime(job) {
  const steps = Object.entries(STEPS).map(([field, step]) => [step, job.timings[field] ?? 0]);
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
  return section("Long jobs", "", html`
    <table class="table stacked">
      <thead>
        <tr>${["Job", "State", "Progress", "Submitted"].map((name) => html`<th scope="col">${name}</th>`)}</tr>
      </thead>
      <tbody>
        ${jobs.map((job) => html`
          <tr data-status=${job.status}>
            <th scope="row">${job.kind} <code class="name">${job.id}</code></th>
            <td data-label="State"><span class="state" data-state=${job.status}>${job.status}</span> ${job.error ? html`<span class="failure" title=${job.error.message}>${job.error.code}</span>` : ""}</td>
            <td data-label="Progress">${jobProgress(job)}</td>
            <td data-label="Submitted">${ago(job.submitted_at, now)}</td>
          </tr>
        `)}
      </tbody>
    </table>
  `);
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

/** Draw a part of the view with its heading. */
export function section(title, hint, content) {
  return html`
    <section class="part" aria-label=${title}>
      <h2>${title}</h2>
      ${hint ? html`<p class="hint">${hint}</p>` : ""}
      ${content}
    </section>
  `;
}

function threads(count) {
  return count ? `${count} thread${count > 1 ? "s" : ""}` : "";
}

function number(label, value, more = "") {
  return html`<td class="number" data-label=${label}>${value}${more ? html`<span class="hint">${more}</span>` : ""}</td>`;
}

function share(label, value) {
  const told = percent(value);
  return html`
    <td class="number" data-label=${label}>
      ${told}
      <span class="bar" aria-hidden="true"><span .style=${`--share:${Math.min(1, value ?? 0)}`}></span></span>
    </td>
  `;
}
