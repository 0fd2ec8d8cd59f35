// The search box: the query, the mode and the index.

import { html } from "../vendor/lit-html.js";
import { choice, segmented } from "./controls.js";

/** Pause after a keystroke before a request, so that fast typing does not send a request for each letter. */
const TYPING_MS = 70;

const MODES = { dense: "Meaning", hybrid: "Both", lexical: "Words" };

/** Draw the box for an index with these abilities; `change` is called with the changed values of the question, and with a pause in milliseconds. */
export function searchBox(ask, index, indexes, { modes, comparesVectors }, change) {
  const ways = modes.length > 1 ? "by meaning, by words, or by both" : `by ${MODES[modes[0]].toLowerCase()}`;
  const counts = Object.entries(indexes).map(([name, { count }]) => [name, `${name} (${count.toLocaleString("en")})`]);
  const chooseIndex = (name) => change({ index: name, filter: {}, group: "", like: "" });
  return html`
    <form class="search-box" role="search" @submit=${(event) => event.preventDefault() || change({})}>
      <h1>${indexes[index] ? `Search ${indexes[index].count.toLocaleString("en")} documents ${ways}` : "Search"}</h1>
      <p class="what">Shoal is a service that turns texts into vectors and searches them. Programs send it the same requests over HTTP.</p>
      ${queryField(ask, change)}
      <div class="row">
        ${ask.like || modes.length < 2 ? "" : segmented("Search by", Object.fromEntries(modes.map((mode) => [mode, MODES[mode]])), ask.mode, (mode) => change({ mode }))}
        ${counts.length > 1 ? choice("Index", Object.fromEntries(counts), index, chooseIndex) : ""}
        <span class="hint keys">↓ ↑ through the hits, Enter for details${comparesVectors ? ", m for more like one" : ""}</span>
      </div>
    </form>
  `;
}

function queryField(ask, change) {
  const chip = html`
    <button type="button" class="chip" aria-label=${`Stop looking for documents like ${ask.like}`} @click=${() => change({ like: "" })}>
      like ${ask.like} ×</button>
  `;
  return html`
    <div class="query">
      <svg viewBox="0 0 20 20" width="22" height="22" aria-hidden="true">
        <circle cx="8.5" cy="8.5" r="5.5"></circle><path d="M13 13l5 5"></path>
      </svg>
      ${ask.like ? chip : ""}
      <input id="query" type="search" aria-label="What are you looking for?" autocomplete="off" spellcheck="false" enterkeyhint="search"
        placeholder=${ask.like ? "or words of your own" : "A question, a phrase, a few words"}
        .value=${ask.query} @input=${(event) => change({ query: event.target.value, like: "" }, TYPING_MS)}>
      <kbd aria-hidden="true">/</kbd>
    </div>
  `;
}
