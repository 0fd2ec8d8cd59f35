// The legend of a map: which colour stands for which value of a field.

import { html } from "../vendor/lit-html.js";
import { coloursOf } from "./point_colours.js";

const NO_VALUE = 255;

/** Draw the legend. A value that is chosen is in front; `onChoose` is called with the code of one, or null for all. */
export function mapLegend(field, chosen, onChoose) {
  if (!field) return "";
  return html`
    <section class="legend" aria-label=${`Colours by ${field.name}`}>
      <h2>${field.name}</h2>
      ${field.values ? valueList(field, chosen, onChoose) : scale(field)}
    </section>
  `;
}

function valueList(field, chosen, onChoose) {
  const known = coloursOf(field).map((colour, code) => ({ code, colour, ...field.values[code] }));
  const others = { code: known.length, colour: "--map-others", value: "other values", count: field.num_others };
  const none = { code: NO_VALUE, colour: "--map-none", value: "no value", count: field.num_without };
  const rows = [...known, ...[others, none].filter(({ count }) => count)];
  return html`
    <ul>
      ${rows.map(({ code, colour, value, count }) => html`
        <li>
          <button aria-pressed=${code === chosen} @click=${() => onChoose(code === chosen ? null : code)}>
            <i .style=${`background:var(${colour})`}></i><span>${String(value)}</span> <b>${count.toLocaleString("en")}</b>
          </button>
        </li>
      `)}
    </ul>
  `;
}

function scale(field) {
  if (field.low === null) return html`<p class="hint">No document has a value.</p>`;
  const without = field.num_without ? `, and ${field.num_without.toLocaleString("en")} without one in grey` : "";
  const isByRank = isRanked(field);
  return html`
    <div class="scale" aria-hidden="true"></div>
    <p class="ends"><span>${field.low}</span> ${isByRank ? html`<span>${field.middle}</span>` : ""} <span>${field.high}</span></p>
    <p class="hint">From low to high${without}. ${isByRank
      ? "By rank, as most values lie near one end: each part of the colours has as many documents."
      : "The outermost 2 % on each side have the colour of the end."}</p>
  `;
}

/** Return true if colours stand for the ranks of values, which are skewed. */
function isRanked(field) {
  return (field.middle ?? null) !== null;
}

/** Return in words what the colours say. */
export function legendInWords(field) {
  if (!field) return "";
  if (!field.values && field.low === null) return "";
  if (!field.values) return `Coloured by ${field.name}, from ${field.low} to ${field.high}${isRanked(field) ? ", by rank" : ""}.`;
  const values = field.values.map(({ value, count }) => `${value}: ${count}`).join(", ");
  return `Coloured by ${field.name}: ${values}${field.num_others ? `, other values: ${field.num_others}` : ""}.`;
}
