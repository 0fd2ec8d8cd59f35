// The options of a search, and the search as code.

import { html } from "../vendor/lit-html.js";
import { bodyOf } from "./ask.js";
import { curlSample, pythonArguments, pythonOf, pythonSample } from "./code.js";
import { choice, share, tick } from "./controls.js";

/** Pause after a move of a slider before the search is sent. */
const SLIDE_MS = 70;

/** Draw the options of an index; `change` is called with the changed values of the question, and with a pause in milliseconds. */
export function searchOptions(ask, info, kinds, { isPlain, comparesVectors }, change) {
  const fields = isPlain ? {} : Object.fromEntries(Object.keys(kinds ?? {}).filter((name) => kinds[name] !== "stored").map((name) => [name, name]));
  const isHybrid = ask.mode === "hybrid" && !ask.like;
  const meaning = `${Math.round(ask.alpha * 100)} % meaning`;
  return html`
    <fieldset class="options">
      <legend>Options</legend>
      ${isHybrid ? share("Balance", ask.alpha, meaning, (alpha) => change({ alpha }, SLIDE_MS)) : ""}
      ${comparesVectors ? share("Diversity", ask.diversity, ask.diversity || "off", (diversity) => change({ diversity }, SLIDE_MS)) : ""}
      ${Object.keys(fields).length ? choice("Group by", { "": "no field", ...fields }, ask.group, (group) => change({ group })) : ""}
      ${info?.reranker && !ask.like ? tick("Let the reranker order the best 50", ask.rerank, (rerank) => change({ rerank })) : ""}
    </fieldset>
  `;
}

/** Return the search as code, by the names of `codeSamples`. */
export function searchSamples(ask, index, hasKey) {
  const body = bodyOf(ask, index);
  const { queries, ...options } = body;
  const given = pythonArguments(options);
  const call = ask.like ? `(hits,) = client.search(${given})` : `hits = client.search(${pythonOf(queries)}, ${given})`;
  const lines = ["for hit in hits:", `    print(round(hit["score"], 3), hit["text"])`];
  return { curl: curlSample("search", body, hasKey), python: pythonSample(call, lines, hasKey) };
}
