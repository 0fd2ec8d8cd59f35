// The state of the service: one word, a label for the top of the page, and the remedy if the service is not well.

import { html } from "../vendor/lit-html.js";

/** The state before the first answer. */
export const STARTING = { status: "starting", label: "connecting", message: "" };

/** Return true if a worker is ready, or would start when a job comes. */
export const answersJobs = ({ state }) => state === "ready" || state === "asleep";

/** Return the state of the service from its answer to /info, or from the error in place of an answer. */
export function serviceOf(info, error, hasKey) {
  if (error) return unwell(error, hasKey);
  const ready = info.workers.filter(answersJobs).length;
  if (ready) return { status: "ready", label: `${ready} worker${ready > 1 ? "s" : ""} ready`, message: "" };
  const message = info.workers_alive ? "A worker is alive, but not ready yet." : "Requests wait until a worker runs.";
  return { status: "no_worker", label: "no worker", message };
}

function unwell(error, hasKey) {
  if (error.status === 401) return { status: "no_key", label: "key needed", message: hasKey ? error.message : "" };
  if (error.code === "unavailable") return { status: "no_redis", label: "no Redis", message: error.message };
  if (error.code === "away") return { status: "away", label: "not reachable", message: error.message };
  return { status: "unwell", label: "unwell", message: error.message };
}

const AGAIN = "This page tries again every few seconds.";

const BANNERS = {
  no_worker: ["No worker is ready", html`Start one: <code>shoal worker</code>, or all together: <code>shoal serve</code>.`],
  no_redis: ["No Redis", ""],
  no_key: ["This service needs a key", html`<code>shoal key new NAME</code> makes one.`],
  away: ["Not reachable", AGAIN],
  unwell: ["The service does not work properly", AGAIN],
};

/** Draw a line above the view that says what the service lacks. */
export function banner(service, askKey) {
  const [title, remedy] = BANNERS[service.status] ?? [];
  if (!title) return "";
  return html`
    <div class="banner" data-status=${service.status} role="alert">
      <strong>${title}.</strong> <span>${service.message}</span> <span>${remedy}</span>
      ${service.status === "no_key" ? html`<button class="button" @click=${askKey}>Enter a key</button>` : ""}
    </div>
  `;
}
