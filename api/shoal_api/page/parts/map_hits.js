// Documents of a map in words: the hits of a query in a list beside it, and the one under the pointer.

import { html } from "../vendor/lit-html.js";

/** Most characters of a text in the tip. */
const TIP_CHARS = 240;

/** Draw the hits of a query. `mark(n)` is called with the number of the one that is looked at, by pointer or keyboard, or null. */
export function hitList(hits, index, mark) {
  return html`
    <section class="map-list">
      <h2>${hits.length ? "The best hits" : "Nothing is found"}</h2>
      <ol>
        ${hits.map((hit, n) => html`
          <li @pointerenter=${() => mark(n)} @pointerleave=${() => mark(null)} @focusin=${() => mark(n)} @focusout=${() => mark(null)}>
            <article tabindex="0" data-id=${hit.id}>
              <span class="label" aria-hidden="true">${n + 1}</span>
              <p>${hit.text ?? hit.id}</p>
              <a href=${`#search?${new URLSearchParams({ like: hit.id, index })}`}>More like this</a>
            </article>
          </li>
        `)}
      </ol>
    </section>
  `;
}

/** Draw the document at a point: undefined while it is not known, null if it was deleted. */
export function documentTip(document, field) {
  if (document === undefined) return null;
  if (document === null) return html`<p>This document was deleted since.</p>`;
  const text = [...document.text];
  const value = [(field && document[field.name]) ?? []].flat().join(", ");
  return html`
    <p>${text.slice(0, TIP_CHARS).join("")}${text.length > TIP_CHARS ? " …" : ""}</p>
    ${value && html`<p class="value"><span>${field.name}</span> ${value}</p>`}
  `;
}
