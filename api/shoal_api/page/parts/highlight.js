// Texts with the words of the query marked.

import { html } from "../vendor/lit-html.js";

/** Return the text with marks at some places, each [start, stop] in code points, as the API counts characters. */
export function marked(text, places) {
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
