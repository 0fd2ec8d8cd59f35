// The charts of the pool: its work since the page was opened, and the time of this work.

import { html } from "../vendor/lit-html.js";
import { chart } from "./chart.js";
import { amount, duration } from "./quantity.js";
import { STEPS } from "./timing.js";

/** Draw the charts of samples of the pool; each sample is an answer of the API. */
export function poolCharts(samples, everyS, keptS) {
  const frame = { times: samples.map(({ time }) => time), everyS, keptS };
  const rate = (label, name) => [label, samples.map(({ rates }) => rates[name])];
  const step = (name) => [name, samples.map(({ rates }) => rates.steps[name])];
  const ofLanes = (field) => ["interactive", "bulk"].map((name) => [name, samples.map(({ lanes }) => lanes.find(({ lane }) => lane === name)[field])]);
  const texts = [rate("computed", "computed"), rate("from the cache", "cached")];
  return html`
    <div class="charts">
      ${chart("Texts a second", amount, texts, frame)}
      ${chart("Age of the oldest job", duration, ofLanes("oldest_age_s"), frame)}
      ${chart("Time of a job, on average", duration, STEPS.map(step), frame)}
      ${chart("Unanswered jobs", amount, ofLanes("num_jobs"), frame)}
    </div>
  `;
}
