// Documents of a map in words: those in a list beside it, and the one under the pointer.

import { html } from "../vendor/lit-html.js";
import { copyText } from "./controls.js";

/** Most characters of a text in the tip. */
const TIP_CHARS = 240;

let hasCopied = false;

/**
 * Draw a list of documents. `mark(n)` is called with the number of the one that is looked at, by pointer or keyboard, or null.
 * It is for the hits of a query if it `isNumbered`.
 */
export function documentList(documents, index, { mark, isNumbered }) {
  return html`
    <ol class=${isNumbered ? "numbered" : ""}>
      ${documents.map((document, n) => html`
        <li @pointerenter=${() => mark(n)} @pointerleave=${() => mark(null)} @focusin=${() => mark(n)} @focusout=${() => mark(null)}>
          <article tabindex="0" data-id=${document.id}>
            ${isNumbered ? html`<span class="label" aria-hidden="true">${n + 1}</span>` : ""}
            <p>${document.text ?? document.id}</p>
            <a href=${likeAddress(document, index)}>More like this</a>
          </article>
        </li>
      `)}
    </ol>
  `;
}

function likeAddress(document, index) {
  return `#search?${new URLSearchParams({ like: document.id, index })}`;
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

/** Draw a button that copies ids, one a line; `onChange` is called after it did. */
export function copyButton(ids, onChange) {
  const copy = async () => {
    await copyText(ids.join("\n"));
    hasCopied = true;
    onChange();
    setTimeout(() => {
      hasCopied = false;
      onChange();
    }, 1500);
  };
  return html`<button class="button quiet" ?disabled=${!ids.length} @click=${copy}>${hasCopied ? "Copied" : "Copy ids"}</button>`;
}
