// A vector as a strip of colours, with a narrow field for each number.

import { html } from "../vendor/lit-html.js";

/** Draw the strip of a vector. */
export function strip(vector, label) {
  const most = vector.reduce((found, value) => Math.max(found, Math.abs(value)), 1e-9);
  const fields = vector.map((value, n) => {
    const colour = `color-mix(in srgb, var(${value < 0 ? "--warm" : "--accent"}) ${(100 * Math.sqrt(Math.abs(value) / most)).toFixed()}%, transparent)`;
    return `${colour} 0 ${(100 * (n + 1)) / vector.length}%`;
  });
  return html`<div class="strip" role="img" aria-label=${label} .style=${`background-image:linear-gradient(to right, ${fields})`}></div>`;
}
