// The tokens of a text, and the place where the model stops reading.

import { html } from "../vendor/lit-html.js";

/** Return true if the model does not read a token; `numRead` characters were read, from the side that was kept. */
function isCut(token, text, numRead, side) {
  if (token.start === null) return false;
  const numCharacters = Array.from(text).length;
  return side === "left" ? token.stop <= numCharacters - numRead : token.start >= numRead;
}

/** Draw the tokens of a text, special tokens and cut tokens too. */
export function tokenList(tokens, text, numRead, side) {
  const cut = tokens.map((token) => isCut(token, text, numRead, side));
  const numCut = cut.filter(Boolean).length;
  const place = side === "left" ? cut.lastIndexOf(true) + 1 : cut.indexOf(true);
  return html`
    <p class="tokens">
      ${tokens.map((token, n) => html`${numCut && n === place ? html`<span class="cut">cut here</span>` : ""}<span
        class="token" data-special=${token.special} data-cut=${cut[n]} data-joined=${isJoined(token, tokens[n - 1])}
        title=${`id ${token.id}`}>${token.text}</span>`)}
    </p>
    <p class="hint">
      ${tokens.length} tokens, special ones included.
      ${numCut ? html`<strong>The model does not read ${numCut} of them.</strong>` : ""}
    </p>
  `;
}

/** Return true if a token continues the word of the token before it. */
function isJoined(token, before) {
  return Boolean(before) && token.start !== null && token.start === before.stop;
}
