// A chart of the last ten minutes: a line for each series, the names of the lines with their last values, and a table.

import { html, svg } from "../vendor/lit-html.js";
import { clock } from "./quantity.js";
import { table } from "./table.js";

/** The size of the drawing, which the page stretches. */
const [WIDTH, HEIGHT] = [400, 100];

/** If two samples are more than this many intervals apart, a line has a gap between them. */
const GAP = 3;

/** Shortest time that a chart shows, in seconds, even if there are samples of a shorter time only. */
const LEAST_S = 120;

/** Largest number of rows of the table. */
const TABLE_ROWS = 10;

/**
 * Draw a chart. `times` are in Unix seconds, `everyS` apart and at most `keptS` old. `series` are pairs of a label and a
 * value for each time; `format` returns a value as text.
 */
export function chart(title, format, series, { times, everyS, keptS }) {
  const last = times.at(-1);
  const shownS = Math.min(keptS, Math.max(LEAST_S, last - times[0]));
  const most = Math.max(0, ...series.flatMap(([, values]) => values)) || 1;
  const place = (value, n) => `${WIDTH * (1 - (last - times[n]) / shownS)} ${HEIGHT * (1 - value / most)}`;
  const goesOn = (values, n) => n && values[n - 1] !== null && times[n] - times[n - 1] <= GAP * everyS;
  const line = (values) => values.map((value, n) => (value === null ? "" : `${goesOn(values, n) ? "L" : "M"}${place(value, n)}`)).join("");
  const step = Math.ceil(times.length / TABLE_ROWS);
  const rows = times.map((_, n) => n).filter((n) => (times.length - 1 - n) % step === 0).reverse();
  return html`
    <figure class="panel chart">
      <h3>${title}</h3>
      <ul>${series.map(([label, values]) => html`<li data-line=${label}>${label} <b>${format(values.at(-1))}</b></li>`)}</ul>
      <div class="hint">${format(most)}</div>
      <svg viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" aria-hidden="true">
        ${series.map(([label, values]) => svg`<path data-line=${label} d=${line(values)}></path>`)}
      </svg>
      <div class="hint row"><span>${clock(last - shownS)}</span><span>${clock(last)}</span></div>
      <details>
        <summary>as a table</summary>
        ${table([["Time", (n) => clock(times[n])], ...series.map(([label, values]) => [label, (n) => format(values[n])])], rows, title)}
      </details>
    </figure>
  `;
}
