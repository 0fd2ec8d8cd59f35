// The similarity of texts: the cosines of their vectors, as a matrix; the arrow keys choose a cell.

import { html } from "../vendor/lit-html.js";

/** Largest number of texts at which each cell shows its number. */
const MAX_NUMBERED = 8;

const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** Return the cosine of each pair of vectors; 0 if one of the two is all zeros. */
export function cosines(vectors) {
  const lengths = vectors.map((vector) => Math.sqrt(dot(vector, vector)) || 1);
  return vectors.map((first, i) => vectors.map((second, j) => dot(first, second) / (lengths[i] * lengths[j])));
}

function dot(first, second) {
  return first.reduce((sum, value, n) => sum + value * second[n], 0);
}

/** Draw the matrix; `pair` is the chosen row and column, and `onChoose` is called with another pair. */
export function similarityMatrix(matrix, texts, pair, onChoose) {
  const last = matrix.length - 1;
  const move = (event, cell) => {
    if (!MOVES[event.key]) return;
    event.preventDefault();
    const next = cell.map((place, axis) => Math.min(last, Math.max(0, place + MOVES[event.key][axis])));
    onChoose(next);
    event.target.closest("table").querySelector(`[data-cell="${next}"]`).focus();
  };
  return html`
    <table class="matrix" data-numbered=${matrix.length <= MAX_NUMBERED} .style=${`--count:${matrix.length}`}>
      <caption class="hidden">Cosine of each pair of texts</caption>
      <colgroup><col class="names"></colgroup>
      <tbody>
        ${matrix.map((row, i) => html`
          <tr>
            <th scope="row" title=${texts[i]}><span>${i + 1}</span><span class="text">${texts[i]}</span></th>
            ${row.map((cosine, j) => html`<td>${cellButton(cosine, [i, j], pair, onChoose, move)}</td>`)}
          </tr>
        `)}
        <tr><td></td>${matrix.map((_, j) => html`<th scope="col">${j + 1}</th>`)}</tr>
      </tbody>
    </table>
  `;
}

function cellButton(cosine, cell, pair, onChoose, move) {
  const isChosen = cell[0] === pair[0] && cell[1] === pair[1];
  const label = `texts ${cell[0] + 1} and ${cell[1] + 1}: ${cosine.toFixed(3)}`;
  return html`
    <button data-cell=${cell.join(",")} aria-pressed=${isChosen} tabindex=${isChosen ? 0 : -1}
      aria-label=${label} title=${label} .style=${`--share:${Math.max(0, cosine)}`}
      @click=${() => onChoose(cell)} @keydown=${(event) => move(event, cell)}><span>${shown(cosine)}</span></button>
  `;
}

/** Return a cosine with two decimals, and no minus before 0. */
function shown(cosine) {
  return (Math.round(cosine * 100) / 100 || 0).toFixed(2).replace("-", "−");
}
