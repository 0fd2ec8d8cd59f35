// The time of a request, by its steps.

import { html } from "../vendor/lit-html.js";

/** The steps of a job, by their names in `Server-Timing`, in order. */
export const STEPS = ["queue", "tokenize", "encode", "search"];

/** Return the milliseconds of each step; `rest` is HTTP, the network and the browser. */
export function timingOf({ headers, ms }) {
  const found = Object.fromEntries(
    [...(headers.get("Server-Timing") ?? "").matchAll(/(\w+);dur=([\d.]+)/g)].map(([, name, value]) => [name, +value]),
  );
  const steps = Object.fromEntries(STEPS.map((name) => [name, found[name] ?? 0]));
  const spent = Object.values(steps).reduce((sum, value) => sum + value, 0);
  return { ms, steps: { ...steps, rest: Math.max(0, ms - spent) }, isCached: headers.get("X-Cached") > 0 };
}

/** Draw the times as a bar with a legend. */
export function timingBar({ ms, steps, isCached }) {
  const label = { rest: "HTTP and browser", encode: isCached ? "encode (cached)" : "encode" };
  const parts = Object.entries(steps);
  return html`
    <section class="timing" aria-label="Time of this answer">
      <p class="stat"><strong>${shown(ms)}</strong> ms</p>
      <div class="bar" aria-hidden="true">
        ${parts.map(([name, value]) => html`<span data-step=${name} .style=${`--share:${value / Math.max(ms, 0.001)}`}></span>`)}
      </div>
      <dl>
        ${parts.map(([name, value]) => html`<div><dt data-step=${name}>${label[name] ?? name}</dt><dd>${shown(value)}</dd></div>`)}
      </dl>
    </section>
  `;
}

function shown(ms) {
  return ms < 10 ? ms.toFixed(1) : Math.round(ms).toLocaleString("en");
}
