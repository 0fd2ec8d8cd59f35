// Compare: the tokens of texts, their vectors, and their similarity.

import { html } from "../vendor/lit-html.js";
import { codeSamples, curlSample, openaiSample, pythonArguments, pythonOf, pythonSample } from "../parts/code.js";
import { choice, segmented, share } from "../parts/controls.js";
import { notice } from "../parts/notice.js";
import { cosines, similarityMatrix } from "../parts/similarity.js";
import { strip } from "../parts/strip.js";
import { timingBar, timingOf } from "../parts/timing.js";
import { tokenList } from "../parts/tokens.js";

export const title = "Compare";

/** Largest number of texts that are compared. */
const MAX_TEXTS = 20;

/** Pause after a keystroke before the texts are embedded. */
const DEBOUNCE_MS = 250;

const FIRST_TEXTS = [
  "A storm tears roofs from houses in Brittany",
  "Heavy winds damage homes on the French coast",
  "The central bank raises interest rates again",
  "Borrowing money becomes more expensive",
  "The goalkeeper saves two penalties in the final",
  "A cup is won on spot kicks, and the keeper is the hero",
];

let context = { state: {} };
let written = FIRST_TEXTS.join("\n");
let options = { prompt_name: "", pooling: "", truncation_side: "right", dimensions: 1 };
let pair = [0, 1];
let found = null;
let error = null;
let isPending = false;
let timer = 0;
let request = new AbortController();

/** Embed the texts. */
export function enter(given) {
  context = given;
  submit();
}

/** Stop the request under way. */
export function leave() {
  request.abort();
  clearTimeout(timer);
}

function texts() {
  return written.split("\n").filter((line) => line.trim()).slice(0, MAX_TEXTS);
}

/** Return how many numbers of each vector are kept. */
function dimensions() {
  const all = context.state.info?.dimension ?? 0;
  return Math.max(1, Math.round(all * options.dimensions));
}

/** Return the options that differ from the defaults. */
function chosenOptions() {
  const given = Object.entries(options).filter(([name, value]) => value && name !== "dimensions" && value !== "right");
  return { ...Object.fromEntries(given), ...(options.dimensions < 1 && dimensions() ? { dimensions: dimensions() } : {}) };
}

function change(changes) {
  options = { ...options, ...changes };
  later();
}

function later() {
  clearTimeout(timer);
  timer = setTimeout(submit, DEBOUNCE_MS);
  context.render();
}

async function submit() {
  request.abort();
  request = new AbortController();
  const { signal } = request;
  const inputs = texts();
  if (!inputs.length) return clear();
  isPending = true;
  context.render();
  try {
    found = await embed(inputs, signal);
    error = null;
  } catch (failure) {
    if (signal.aborted) return;
    error = failure;
  }
  isPending = false;
  context.render();
}

function clear() {
  found = error = null;
  isPending = false;
  context.render();
}

async function embed(inputs, signal) {
  const body = { inputs, answer: "result", ...chosenOptions() };
  const side = options.truncation_side;
  const [answer, tokens] = await Promise.all([
    context.api.ask("POST", "embed", body, { signal }),
    tokensOf(inputs, signal),
  ]);
  const { embeddings, truncated, characters } = answer.body;
  pair = pair.map((place) => Math.min(place, inputs.length - 1));
  return { inputs, side, vectors: embeddings, truncated, characters, tokens, matrix: cosines(embeddings), timing: timingOf(answer) };
}

/** Return the tokens of each text: null for a text that is too long, and for all texts if this service has no route for tokens. */
async function tokensOf(inputs, signal) {
  try {
    return await context.api.post("tokenize", { inputs }, { signal });
  } catch (failure) {
    if (failure.status === 404) return null;
    if (failure.status !== 413) throw failure;
    if (inputs.length === 1) return [null];
    return (await Promise.all(inputs.map((text) => tokensOf([text], signal)))).flat();
  }
}

/** Draw the view. */
export function view(state) {
  return html`
    <div class="compare" aria-busy=${isPending}>
      <h1>Your texts as the model sees them</h1>
      <div class="columns">
        <div class="given">${editor(state)}</div>
        <div class="made">${error ? notice(error, submit) : found ? comparison() : ""}</div>
      </div>
      ${found && !error ? chosenPair() : ""}
      ${found && !error ? cost(state) : ""}
    </div>
  `;
}

function editor(state) {
  const count = texts().length;
  return html`
    <label class="field texts">
      <span>Up to ${MAX_TEXTS} texts, one a line <span class="value">${count}</span></span>
      <textarea rows="9" spellcheck="false" .value=${written} @input=${(event) => { written = event.target.value; later(); }}></textarea>
    </label>
    ${optionControls(state)}
  `;
}

function optionControls(state) {
  const prompts = state.info?.prompts ?? [];
  const named = Object.fromEntries(prompts.map((name) => [name, name]));
  const poolings = { "": "as the model says", mean: "mean", max: "max", cls: "cls" };
  return html`
    <fieldset class="options">
      <legend class="hidden">Options</legend>
      ${prompts.length ? choice("Prompt", { "": "none", ...named }, options.prompt_name, (name) => change({ prompt_name: name })) : ""}
      ${choice("Pooling", poolings, options.pooling, (pooling) => change({ pooling }))}
      ${share("Dimensions", options.dimensions, `${dimensions()} of ${state.info?.dimension ?? "?"}`, (dimensions) => change({ dimensions }))}
      <div class="field"><span>A text that is too long loses its</span>${segmented("Cut", { right: "end", left: "beginning" }, options.truncation_side, (side) => change({ truncation_side: side }))}</div>
    </fieldset>
  `;
}

function comparison() {
  if (found.inputs.length < 2) return html`<p class="hint">Write a second text to compare the two.</p>`;
  return similarityMatrix(found.matrix, found.inputs, pair, (next) => {
    pair = next;
    context.render();
  });
}

function chosenPair() {
  const [first, second] = pair;
  const places = first === second ? [first] : [first, second];
  return html`
    <section class="pair" aria-label="The two texts that are chosen">
      ${first === second ? "" : html`<p class="stat"><strong>${found.matrix[first][second].toFixed(3)}</strong> cosine of ${first + 1} and ${second + 1}</p>`}
      ${places.map((place) => oneText(place))}
    </section>
  `;
}

function oneText(place) {
  const text = found.inputs[place];
  const tokens = found.tokens?.[place];
  return html`
    <article class="panel">
      <h2><span class="number">${place + 1}</span> ${text.length > 140 ? `${text.slice(0, 140)}…` : text}</h2>
      ${strip(found.vectors[place], `The ${found.vectors[place].length} numbers of the vector of text ${place + 1}`)}
      ${tokens ? tokenList(tokens, text, found.characters[place], found.side) : ""}
      ${found.truncated[place] && !tokens ? html`<p class="hint">The model reads ${found.characters[place].toLocaleString("en")} of its characters, and its tokens are not shown.</p>` : ""}
    </article>
  `;
}

function cost(state) {
  const { inputs } = found;
  const given = chosenOptions();
  const body = { inputs, ...given };
  const more = Object.keys(given).length ? `, ${pythonArguments(given)}` : "";
  const samples = {
    curl: curlSample("embed", body, state.needsKey),
    python: pythonSample(`vectors = client.embed(${pythonOf(inputs)}${more})`, ["print(vectors @ vectors.T)"], state.needsKey),
    openai: openaiSample(state.info?.model ?? "", inputs, given.dimensions ? { dimensions: given.dimensions } : {}, state.needsKey),
  };
  return html`<div class="cost">${timingBar(found.timing)}${codeSamples(samples, context.render)}</div>`;
}
