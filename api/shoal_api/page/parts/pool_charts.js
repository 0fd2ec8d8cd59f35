// The charts of the pool: its work since the page was opened, and how long the work took.

import { html } from "../vendor/lit-html.js";
import "./chart.js";
import { amount, duration, ROUND_TIMES } from "./quantity.js";

/** Draw the charts of samples of the pool; each sample is an answer of the API. */
export function poolCharts(samples, everyS, keptS) {
  const frame = { times: samples.map(({ time }) => time), everyS, keptS };
  const rate = (name) => samples.map(({ rates }) => rates[name]);
  const ofLane = (name, field) => samples.map(({ lanes }) => lanes.find(({ lane }) => lane === name)[field]);
  const charts = [
    {
      title: "Texts a second",
      format: amount,
      isLayered: true,
      series: [
        { label: "computed", colour: "--accent", values: rate("computed_texts_per_s") },
        { label: "from the cache", colour: "--warm", values: rate("cached_texts_per_s") },
      ],
    },
    {
      title: "Wait in the lane, 95 % of jobs",
      format: duration,
      steps: ROUND_TIMES,
      series: [
        { label: "interactive", colour: "--accent", values: ofLane("interactive", "wait_p95_s") },
        { label: "bulk", colour: "--warm", values: ofLane("bulk", "wait_p95_s") },
      ],
    },
    {
      title: "Time of a job, on average",
      format: duration,
      steps: ROUND_TIMES,
      isLayered: true,
      series: [
        { label: "queue", colour: "--step-queue", values: rate("queue_s") },
        { label: "tokenize", colour: "--step-tokenize", values: rate("tokenize_s") },
        { label: "encode", colour: "--step-encode", values: rate("encode_s") },
        { label: "search", colour: "--step-search", values: rate("search_s") },
      ],
    },
    {
      title: "Unanswered jobs",
      format: amount,
      series: [
        { label: "interactive", colour: "--accent", values: ofLane("interactive", "num_jobs") },
        { label: "bulk", colour: "--warm", values: ofLane("bulk", "num_jobs") },
      ],
    },
  ];
  return html`<div class="charts">${charts.map((chart) => html`<shoal-chart .content=${{ ...frame, ...chart }}></shoal-chart>`)}</div>`;
}
