// A hit: the document's text, its fields, its score, and buttons for further searches.

import { html } from "../vendor/lit-html.js";
import { chosenValues } from "./ask.js";
import { score } from "./score.js";

/** Names in a hit that are not fields of its document. */
const OWN = new Set(["id", "score", "text", "snippet", "explain"]);

/** Longest value that is shown beside the text; longer values are among the details. */
const MAX_CHIP_CHARS = 48;

/** Return the fields of the document. */
function fieldsOf(hit) {
  return Object.entries(hit).filter(([name, value]) => !OWN.has(name) && value !== null && value !== "");
}

/**
 * Draw a hit. `kinds` has the kind of each field of the index, and `best` is the best score. `actions` has `like(hit)`,
 * if the index compares vectors, `filter(field, value)` and `toggle(hit)`, which opens and closes its details.
 */
export function hitRow(hit, ask, kinds, best, isOpen, actions) {
  const { text, highlights } = hit.snippet ?? { text: hit.text ?? "", highlights: [] };
  const isCut = hit.text && hit.text.length > text.length;
  const chips = fieldsOf(hit).flatMap(([name, value]) => [value].flat().map((item) => [name, item])).filter(isShort);
  return html`
    <li>
      <article class="hit" tabindex="-1" data-id=${hit.id} aria-label=${`Hit ${hit.id}`}>
        ${score(hit, ask, best)}
        <div class="content">
          <p class="text">${marked(text, highlights)}${isCut ? html`<span class="more" aria-hidden="true"> …</span>` : ""}</p>
          <div class="row">
            ${chips.map(([name, value]) => chip(name, value, ask, kinds, actions))}
            <span class="actions">
              ${actions.like ? html`<button class="button quiet" @click=${() => actions.like(hit)}>More like this</button>` : ""}
              <button class="button quiet" aria-expanded=${isOpen} @click=${() => actions.toggle(hit)}>Details</button>
            </span>
          </div>
          ${isOpen ? details(hit, isCut) : ""}
        </div>
      </article>
    </li>
  `;
}

/** Return the text with marks at some places, each [start, stop] in code points, the API's unit of characters. */
function marked(text, places) {
  if (!places?.length) return text;
  const characters = Array.from(text);
  const parts = [];
  let end = 0;
  for (const [start, stop] of places) {
    parts.push(characters.slice(end, start).join(""), html`<mark>${characters.slice(start, stop).join("")}</mark>`);
    end = stop;
  }
  return [...parts, characters.slice(end).join("")];
}

function isShort([, value]) {
  return typeof value !== "object" && String(value).length <= MAX_CHIP_CHARS;
}

/** Draw a field, as a button if searches can filter by it. */
function chip(name, value, ask, kinds, actions) {
  if ((kinds?.[name] ?? "stored") === "stored") return html`<span class="chip"><span>${name}</span> ${String(value)}</span>`;
  const isChosen = chosenValues(ask.filter, name).includes(value);
  return html`
    <button class="chip" aria-pressed=${isChosen} title=${`${isChosen ? "Any" : "Only this"} ${name}`}
      @click=${() => actions.filter(name, value)}><span>${name}</span> ${String(value)}</button>
  `;
}

function details(hit, isCut) {
  const { words, mode, ...parts } = hit.explain ?? {};
  return html`
    <div class="details">
      ${isCut ? html`<p class="whole">${hit.text}</p>` : ""}
      <dl>
        <div><dt>id</dt><dd>${hit.id}</dd></div>
        ${fieldsOf(hit).map(([name, value]) => html`<div><dt>${name}</dt><dd>${shown(value)}</dd></div>`)}
        ${Object.entries(parts).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value.toFixed(4)}</dd></div>`)}
        ${Object.entries(words ?? {}).map(([word, value]) => html`<div><dt>word “${word}”</dt><dd>${value.toFixed(3)}</dd></div>`)}
      </dl>
    </div>
  `;
}

/** Return a value in a readable form: only http and https addresses become links. */
function shown(value) {
  if (typeof value === "object") return JSON.stringify(value);
  if (!/^https?:\/\/\S+$/.test(value)) return String(value);
  return html`<a href=${value} target="_blank" rel="noopener noreferrer">${value}</a>`;
}
