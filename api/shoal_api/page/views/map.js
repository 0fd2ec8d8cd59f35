// Map: the documents of an index in two dimensions, coloured by a field, with a query and its hits.

import { html } from "../vendor/lit-html.js";
import * as asking from "../parts/ask.js";
import { choice } from "../parts/controls.js";
import { note } from "../parts/history.js";
import "../parts/map_canvas.js";
import { fetchInColour, fetchMap, MapDocuments } from "../parts/map_data.js";
import { legendInWords, mapLegend } from "../parts/map_legend.js";
import { documentTip, hitList } from "../parts/map_hits.js";
import { empty, notice } from "../parts/notice.js";

export const title = "Map";

/** Hits of a query. */
const NUM_HITS = 20;

/** Pause after a keystroke, and after the pointer came to a point, before a request. */
const TYPING_MS = 200;
const HOVER_MS = 60;

/** Documents around a point that are asked for with it. */
const NUM_AROUND = 12;

/** What two maps with the same points have in common. */
const IDENTITY = ["index", "version", "rows"];

let context = { state: {} };
let ask = { query: "", index: "", field: null };
let map = null;
let documents = null;
let found = null;
let error = null;
let colours = {}; // the field that each index is coloured by without a choice
let front = null;
let pointed = null;
let strong = null;
let isPending = false;
let hasWebgl = true;
let timer = 0;
let hoverTimer = 0;
let request = new AbortController();

/** Show what the address asks. */
export function enter(given) {
  context = given;
  const { params } = context.state;
  if (params) ask = { query: params.get("query") ?? "", index: params.get("index") ?? "", field: params.get("field") };
  submit();
}

/** Stop what is under way. */
export function leave() {
  request.abort();
  clearTimeout(timer);
  clearTimeout(hoverTimer);
}

function indexes() {
  return context.state.info?.indexes ?? {};
}

function index() {
  return asking.indexOf(ask, indexes());
}

/** Return the names of the fields that points can be coloured by. */
function fields() {
  const kinds = Object.entries(indexes()[index()]?.fields ?? {});
  return kinds.filter(([, kind]) => kind !== "stored").map(([name]) => name);
}

function keywords() {
  return fields().filter((name) => indexes()[index()].fields[name] === "keyword");
}

/** Return the field to colour by, an empty one for none. */
function field() {
  return ask.field ?? colours[index()] ?? "";
}

/** Ask something else: at once, or after a pause in typing. */
function change(changes, delayMs = 0) {
  ask = { ...ask, ...changes };
  clearTimeout(timer);
  if (!delayMs) return submitNoted("");
  timer = setTimeout(submitNoted, delayMs, "query");
  context.render();
}

function submitNoted(moved) {
  const params = new URLSearchParams(Object.entries(ask).filter(([name, value]) => value || (name === "field" && value === "")));
  note(params.size ? `#map?${params}` : "#map", moved);
  return submit();
}

/** Fetch the map, unless it is there, and search; an answer to an earlier request is dropped. */
async function submit() {
  request.abort();
  request = new AbortController();
  const { signal } = request;
  isPending = true;
  context.render();
  try {
    await load(signal);
    await search(signal);
    error = null;
  } catch (failure) {
    if (signal.aborted) return;
    error = failure;
    found = null;
  }
  isPending = false;
  context.render();
}

async function load(signal) {
  if (!Object.keys(indexes()).length && !ask.index) return void (map = null);
  const isThere = map?.index === index() && (map.field?.name ?? "") === field();
  if (isThere && map.version === indexes()[index()]?.version) return;
  const [name, isChosen] = [index(), (ask.field ?? colours[index()]) !== undefined];
  const next = await (isChosen ? fetchMap(context.api, name, field(), signal) : fetchInColour(context.api, name, keywords(), signal));
  if (!isChosen) colours[name] = next.field?.name ?? "";
  take(next);
}

/** Take a map; what is shown and known stays, if it is the same one with other colours. */
function take(next) {
  const isSame = map && IDENTITY.every((name) => String(map[name]) === String(next[name]));
  front = null;
  if (isSame) return void (map = { ...next, places: map.places, points: map.points });
  map = { ...next, points: { places: next.places } };
  documents = new MapDocuments(context.api, map);
  pointed = null;
}

async function search(signal) {
  const queries = ask.query.trim();
  strong = null;
  if (!queries || !map) return void (found = null);
  const body = { queries, index: index(), k: NUM_HITS, map_place: true };
  const { results, map_places } = await context.api.post("search", body, { signal });
  found = { hits: results[0], query: map_places[0] };
}

/** Note the point that is meant, and ask for its document and those around it. */
function point(number) {
  pointed = number;
  clearTimeout(hoverTimer);
  if (number !== null && documents.at(number) === undefined) {
    hoverTimer = setTimeout(() => know(canvas()?.nearest(number, NUM_AROUND) ?? [number]), HOVER_MS);
  }
  context.render();
}

/** Ask for documents at some points; if the index has another version by now, ask for its map. */
async function know(numbers) {
  const { signal } = request;
  try {
    await documents.fetch(numbers, signal);
  } catch (failure) {
    if (signal.aborted) return;
    if (failure.code === "invalid_request") return reload();
    error = failure;
  }
  context.render();
}

function reload() {
  map = pointed = null;
  submit();
}

function canvas() {
  return document.querySelector("shoal-map");
}

function forgoWebgl() {
  if (!hasWebgl) return;
  hasWebgl = false;
  context.render();
}

/** Draw the view. */
export function view(state) {
  const names = Object.keys(indexes());
  const isDrawn = map && hasWebgl && error?.code !== "index_mismatch";
  return html`
    <div class="map" aria-busy=${isPending}>
      ${controls(names)}
      <div class="map-columns">
        <div>
          ${error ? problem() : ""}
          ${state.service?.status === "ready" && !names.length && !error ? noIndex() : ""}
          ${isDrawn ? drawn() : ""}
          ${map && !hasWebgl ? empty("This browser does not draw maps", "It has no WebGL. The hits of a query are listed all the same.") : ""}
        </div>
        ${map && error?.code !== "index_mismatch" ? aside() : ""}
      </div>
    </div>
  `;
}

function problem() {
  if (error.code !== "index_mismatch") return notice(error, submit);
  const again = html`It was built by an earlier release. Build it again of its source:
    <code>shoal index build FILE --name ${index()}</code>`;
  return empty("This index has no map yet", again);
}

function noIndex() {
  return empty("No index is served yet", html`Build one of a file, and serve it: <code>shoal index build news.csv --name news</code>`);
}

function controls(names) {
  const items = Object.fromEntries(names.map((name) => [name, `${name} (${indexes()[name].count.toLocaleString("en")})`]));
  const colours = Object.fromEntries([["", "nothing"], ...fields().map((name) => [name, name])]);
  return html`
    <form class="map-ask" role="search" @submit=${(event) => event.preventDefault() || change({})}>
      <h1>${map ? sample() : "Map"}</h1>
      <div class="row">
        <label class="field query-field">
          <span>Find on the map</span>
          <input id="map-query" type="search" autocomplete="off" spellcheck="false" placeholder="A question, a phrase, a few words"
            .value=${ask.query} @input=${(event) => change({ query: event.target.value }, TYPING_MS)}>
        </label>
        ${choice("Colour by", colours, field(), (field) => change({ field }))}
        ${names.length > 1 ? choice("Index", items, index(), (name) => change({ index: name, field: null })) : ""}
      </div>
    </form>
  `;
}

/** Draw the canvas with its buttons, and say in words what it shows. */
function drawn() {
  const content = {
    ...{ points: map.points, codes: map.codes, field: map.field, isInFront, pointed },
    emphasis: [front, Boolean(found)],
    marks: found?.hits.map((hit, n) => ({ place: hit.map_place, label: String(n + 1), isStrong: n === strong })) ?? [],
    query: found?.query ?? null,
    tip: pointed === null ? null : documentTip(documents.at(pointed), map.field),
    onPoint: point,
    onMissing: forgoWebgl,
  };
  return html`
    <div class="plane">
      <shoal-map .content=${content}></shoal-map>
      <div class="tools" role="group" aria-label="Map">
        <button class="icon" aria-label="Enlarge" title="Enlarge (+)" @click=${() => canvas().enlarge(1.6)}>${glyph("M10 4v12M4 10h12")}</button>
        <button class="icon" aria-label="Make smaller" title="Make smaller (−)" @click=${() => canvas().enlarge(1 / 1.6)}>${glyph("M4 10h12")}</button>
        <button class="icon" aria-label="Show all" title="Show all (0)" @click=${() => canvas().showAll()}>${glyph("M4 8V4h4M12 4h4v4M16 12v4h-4M8 16H4v-4")}</button>
      </div>
    </div>
    <p class="hint" id="map-keys">
      <span class="by-mouse">Drag to move, scroll to enlarge, point to read. Keys: arrows, +, −, and 0 for all.</span>
      <span class="by-touch">Drag to move, pinch to enlarge, tap a point to read it.</span>
    </p>
    <p class="hidden" id="map-summary" role="status">${summary()}</p>
  `;
}

function glyph(path) {
  return html`<svg viewBox="0 0 20 20" width="18" height="18" aria-hidden="true"><path d=${path}></path></svg>`;
}

/**
 * Return true for a point that is not faint: one with the value that is picked out in the legend. The hits of a query
 * make the others faint only where no colours have to be told apart.
 */
function isInFront(code) {
  if (front !== null) return code === front;
  return Boolean(map.field) || !found;
}

/** Return in words how many documents are on the map. */
function sample() {
  const [all, shown] = [indexes()[map.index]?.count ?? 0, map.rows.length].map((count) => count.toLocaleString("en"));
  return indexes()[map.index]?.count > map.rows.length ? `A sample of ${shown} of ${all} documents` : `${shown} documents`;
}

function summary() {
  const hits = found ? `${found.hits.length} hits of the query are marked by their numbers.` : "";
  return `${sample()}. ${legendInWords(map.field)} ${hits}`;
}

function aside() {
  return html`
    <aside aria-label="About the map">
      ${hasWebgl ? mapLegend(map.field, front, chooseValue) : ""}
      ${found ? hitList(found.hits, map.index, mark) : ""}
    </aside>
  `;
}

function chooseValue(code) {
  front = code;
  context.render();
}

/** Mark the hit of that number on the map, or none. */
function mark(number) {
  strong = number;
  if (number !== null) canvas()?.showPlace(found.hits[number].map_place);
  context.render();
}
