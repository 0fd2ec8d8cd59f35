// Search: hits as you type, with the parts of their scores and the time that the search took.

import { html } from "../vendor/lit-html.js";
import * as asking from "../parts/ask.js";
import { codeSamples } from "../parts/code.js";
import { exampleList, findExamples } from "../parts/examples.js";
import { chosenFilters, countedFields, facetPanel } from "../parts/facets.js";
import { hitRow } from "../parts/hit.js";
import { empty, notice } from "../parts/notice.js";
import { searchBox } from "../parts/search_box.js";
import { searchOptions, searchSamples } from "../parts/search_options.js";
import { timingBar, timingOf } from "../parts/timing.js";

export const title = "Search";

let context = { state: {} };
let ask = asking.NOTHING;
let found = null;
let examples = {};
let error = null;
let isPending = false;
let isAsideOpen = false;
let timer = 0;
let request = new AbortController();
const open = new Set();
const wordless = new Set(); // indexes whose words an earlier release built

const pages = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && showMore());

/** Ask the question in the address, or the last question again if it has no answer. */
export function enter(given) {
  context = given;
  document.addEventListener("keydown", onKey);
  const { params } = context.state;
  if (params) ask = asking.askOf(params);
  if (error || found?.asked !== ask) submit();
  if (params && matchMedia("(pointer: fine)").matches) requestAnimationFrame(() => input()?.focus());
}

/** Stop the request under way. */
export function leave() {
  document.removeEventListener("keydown", onKey);
  request.abort();
  isPending = false;
  clearTimeout(timer);
}

function input() {
  return document.querySelector("#query");
}

function indexes() {
  return context.state.info?.indexes ?? {};
}

function index() {
  return asking.indexOf(ask, indexes());
}

function abilities() {
  return asking.abilitiesOf(indexes()[index()], !wordless.has(index()));
}

function kinds() {
  return indexes()[index()]?.fields;
}

/** Change the question, and ask at once, or after a pause in typing or sliding. */
function change(changes, delayMs = 0) {
  ask = { ...ask, ...changes };
  clearTimeout(timer);
  if (!delayMs) return submitNoted(false);
  timer = setTimeout(submitNoted, delayMs, true);
  context.render();
}

/** Ask, with the question in the address: in a new entry of the history, or, if the user types or slides, in place of the last query. */
function submitNoted(isTyped) {
  const query = asking.paramsOf(ask).toString();
  const hash = query ? `#search?${query}` : "#search";
  if (hash !== (location.hash || "#search")) history[isTyped && location.hash.includes("query=") ? "replaceState" : "pushState"](null, "", hash);
  return submit();
}

/** Send the request and show its answer; an answer to an earlier request is dropped. */
async function submit() {
  request.abort();
  request = new AbortController();
  const { signal } = request;
  isPending = true;
  context.render();
  try {
    const fitted = asking.fitted(ask, abilities());
    if (asking.isAsked(fitted)) await search(fitted, signal);
    else await showExamples(signal);
    error = null;
  } catch (failure) {
    if (signal.aborted) return;
    if (failure.code === "index_mismatch" && !wordless.has(index())) {
      wordless.add(index());
      return submit();
    }
    error = failure;
  }
  isPending = false;
  context.render();
}

async function search(fitted, signal) {
  const asked = ask;
  const answer = await send(fitted, "", signal);
  open.clear();
  found = { asked, ask: fitted, ...pageOf(answer), timing: timingOf(answer) };
}

function send(fitted, cursor, signal) {
  const counted = countedFields(kinds());
  return context.api.ask("POST", "search", asking.wholeBodyOf(fitted, index(), abilities(), counted, cursor), { signal });
}

async function showExamples(signal) {
  found = null;
  const name = index();
  if (indexes()[name]?.dimension && !examples[name]) examples[name] = await findExamples(context.api, name, signal);
}

function pageOf({ body }) {
  return { hits: body.results[0], cursor: body.cursors?.[0], total: body.totals?.[0], facets: body.facets?.[0] };
}

/** Add the next page to the hits that are shown. */
async function showMore() {
  if (!found?.cursor || isPending) return;
  const { signal } = request;
  isPending = true;
  try {
    const next = pageOf(await send(found.ask, found.cursor, signal));
    found = { ...found, hits: [...found.hits, ...next.hits], cursor: next.cursor, trouble: null };
  } catch (failure) {
    if (signal.aborted) return;
    found = { ...found, trouble: failure };
  }
  isPending = false;
  context.render();
}

/** Move among the hits with the keyboard. */
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const isTyping = event.target.matches("input, textarea, select");
  if (event.key === "/" && !isTyping) return focusOn(event, input());
  if (event.key === "Escape" && event.target === input()) return change({ query: "", like: "" });
  const hits = [...document.querySelectorAll(".hit")];
  const place = hits.indexOf(document.activeElement);
  if (event.target !== input() && place < 0) return;
  if (event.key === "ArrowDown") focusOn(event, hits[place + 1]);
  if (event.key === "ArrowUp" && place >= 0) focusOn(event, hits[place - 1] ?? input());
  if (event.key === "Enter" && place >= 0) toggle(found.hits[place]);
  if (event.key === "m" && place >= 0 && abilities().comparesVectors) {
    event.preventDefault(); // like() moves the focus to the box, and the letter would be typed there
    like(found.hits[place]);
  }
}

function focusOn(event, element) {
  event.preventDefault();
  element?.focus();
}

function toggle(hit) {
  if (!open.delete(hit.id)) open.add(hit.id);
  context.render();
}

function like(hit) {
  change({ like: hit.id, query: "" });
  scrollTo(0, 0);
  input().focus();
}

function filter(field, value) {
  change({ filter: asking.withValue(ask.filter, field, value) });
}

/** Draw the view. */
export function view(state) {
  requestAnimationFrame(watchEnd);
  const can = abilities();
  const shown = asking.fitted(ask, can);
  const isAsked = asking.isAsked(shown);
  return html`
    <div class="search" data-asked=${isAsked} aria-busy=${isPending}>
      ${searchBox(shown, index(), indexes(), can, change)}
      <div class="columns">
        ${isAsked && found ? aside(shown, can, state) : ""}
        <div class="found">
          ${isAsked ? chosenFilters(ask.filter, (filter) => change({ filter })) : ""}
          ${isAsked && found && !error ? foundLine(shown, state) : ""}
          ${content(isAsked, can)}
        </div>
      </div>
    </div>
  `;
}

function watchEnd() {
  pages.disconnect();
  const end = document.querySelector("#more");
  if (end) pages.observe(end);
}

function content(isAsked, can) {
  if (context.state.service?.status === "ready" && !Object.keys(indexes()).length) {
    return empty("No index is served yet", html`Build one from a file, and serve it: <code>shoal index build news.csv --name news</code>`);
  }
  if (error) return notice(error, submit);
  if (!isAsked) return [examples[index()]?.length ? exampleList(examples[index()], (query) => change({ query })) : "", ownFile()];
  return found ? hitList(can) : "";
}

function hitList({ comparesVectors }) {
  if (!found.hits.length) return empty("Nothing is found", "Try other words, search by meaning, or take filters away.");
  const best = Math.max(...found.hits.map((hit) => hit.score));
  const actions = { toggle, filter, like: comparesVectors && like };
  return html`
    <ol class="hits">${found.hits.map((hit) => hitRow(hit, { ...found.ask, filter: ask.filter }, kinds(), best, open.has(hit.id), actions))}</ol>
    ${found.trouble ? notice(found.trouble, showMore) : found.cursor ? html`<button id="more" class="button quiet" @click=${showMore}>More hits</button>` : ""}
  `;
}

/** Draw the summary of the hits, with the request as code behind a button. */
function foundLine(shown, state) {
  return html`
    <div class="found-line">
      <h2 class="hint" role="status">${found.hits.length ? summary() : ""}</h2>
      <details>
        <summary>As code</summary>
        ${codeSamples(searchSamples(shown, index(), state.needsKey), context.render)}
      </details>
    </div>
  `;
}

function summary() {
  const { ask: asked, hits, total } = found;
  const all = total === undefined ? "" : ` of ${total.toLocaleString("en")}`;
  const which = asked.like ? ` by their likeness to ${asked.like}` : asked.mode === "lexical" ? " with a word of the query" : "";
  return `The best ${hits.length.toLocaleString("en")}${all}${which}`;
}

function ownFile() {
  return html`<p class="hint">Your own documents: <code>shoal index build news.csv --name news</code>, and this page offers them beside these.</p>`;
}

function aside(shown, can, state) {
  const toggleAside = () => {
    isAsideOpen = !isAsideOpen;
    context.render();
  };
  return html`
    <aside data-open=${isAsideOpen} aria-label="This search">
      ${error ? "" : timingBar(found.timing)}
      <button class="button quiet opener" aria-expanded=${isAsideOpen} @click=${toggleAside}>Filters and options</button>
      <div class="choices">
        ${facetPanel(kinds(), found, ask.filter, (filter) => change({ filter }))}
        ${searchOptions(shown, state.info, kinds(), can, change)}
      </div>
    </aside>
  `;
}
