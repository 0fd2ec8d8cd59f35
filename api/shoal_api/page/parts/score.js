// A score as a number and a bar. The bar shows the parts of the score if they are known.

import { html } from "../vendor/lit-html.js";

/** Return the parts of a hit's bar, as shares of its length: `meaning` and `words`. `best` is the best score. */
function partsOf(hit, ask, best) {
  const { mode, cosine } = hit.explain ?? {};
  if (mode === "hybrid" && !ask.rerank && !ask.like) {
    const meaning = Math.max(0, ask.alpha * cosine);
    return { meaning, words: Math.max(0, hit.score - ask.alpha * cosine) };
  }
  if (mode === "lexical" && !ask.rerank) return { meaning: 0, words: best > 0 ? hit.score / best : 0 };
  return { meaning: Math.max(0, hit.score), words: 0 };
}

/** Draw the score of a hit. */
export function score(hit, ask, best) {
  const { meaning, words } = partsOf(hit, ask, best);
  const scale = Math.max(1, meaning + words);
  return html`
    <div class="score">
      <span class="number" title="score">${hit.score.toFixed(hit.score < 10 ? 3 : 2)}</span>
      <span class="bar" aria-hidden="true">
        <span data-part="meaning" .style=${`--share:${meaning / scale}`}></span>
        <span data-part="words" .style=${`--share:${words / scale}`}></span>
      </span>
    </div>
  `;
}
