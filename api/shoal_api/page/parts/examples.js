// The hits of three example queries, for a user who has not asked anything yet.

import { html } from "../vendor/lit-html.js";
import { NOTHING } from "./ask.js";
import { score } from "./score.js";

/** Queries that find good hits among the sample headlines. */
const QUERIES = ["storms are getting worse", "new planet discovered", "how to sleep better"];

/** Least score of an example's best hit: an index about other subjects shows no such example. */
const MIN_SCORE = 0.3;

const HITS = 3;

/** Return the examples for an index, each with its query and its hits. Throws ApiError. */
export async function findExamples(api, index, signal) {
  const body = { queries: QUERIES, k: HITS, index };
  const { results } = await api.post("search", body, { signal });
  const examples = QUERIES.map((query, number) => ({ query, hits: results[number] }));
  return examples.filter(({ hits }) => hits[0]?.score >= MIN_SCORE);
}

/** Draw the examples; `onChoose` is called with the query of the chosen one. */
export function exampleList(examples, onChoose) {
  const ask = { ...NOTHING, mode: "dense" };
  return html`
    <section class="examples" aria-label="Examples">
      ${examples.map(({ query, hits }) => html`
        <article>
          <h2><button @click=${() => onChoose(query)}>${query}</button></h2>
          <ol>${hits.map((hit) => html`<li>${score(hit, ask, 1)}<p>${hit.text ?? hit.id}</p></li>`)}</ol>
        </article>
      `)}
    </section>
  `;
}
