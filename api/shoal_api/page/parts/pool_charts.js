// The charts of the pool: what it did in the last ten minutes, and how long that took.

import { html } from "../vendor/lit-html.js";
import "./chart.js";
import { amount, duration, ROUND_TIMES } from "./quantity.js";

/** Draw the charts of a history, as the API tells it. */
export function poolCharts(history, everyS, keptS) {
  const frame = { times: history.time, everyS, keptS };
  const { interactive, bulk } = history.lanes;
  const charts = [
    {
      title: "Texts a second",
      format: amount,
      isLayered: true,
      series: [
        { label: "computed", colour: "--accent", values: history.computed_texts_per_s },
        { label: "from the cache", colour: "--warm", values: history.cached_texts_per_s },
      ],
    },
    {
      title: "Wait in the lane, 95 % of jobs",
      format: duration,
      steps: ROUND_TIMES,
      series: [
        { label: "interactive", colour: "--accent", values: interactive.wait_p95_s },
        { label: "bulk", colour: "--warm", values: bulk.wait_p95_s },
      ],
    },
    {
      title: "Time of a job, on average",
      format: duration,
      steps: ROUND_TIMES,
      isLayered: true,
      series: [
        { label: "queue", colour: "--step-queue", values: history.queue_s },
        { label: "tokenize", colour: "--step-tokenize", values: history.tokenize_s },
        { label: "encode", colour: "--step-encode", values: history.encode_s },
        { label: "search", colour: "--step-search", values: history.search_s },
      ],
    },
    {
      title: "Unanswered jobs",
      format: amount,
      series: [
        { label: "interactive", colour: "--accent", values: interactive.num_jobs },
        { label: "bulk", colour: "--warm", values: bulk.num_jobs },
      ],
    },
  ];
  return html`<div class="charts">${charts.map((chart) => html`<shoal-chart .content=${{ ...frame, ...chart }}></shoal-chart>`)}</div>`;
}
