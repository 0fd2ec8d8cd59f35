// Tables, and the parts of a view with their headings.

import { html } from "../vendor/lit-html.js";

/** Draw a table. A column is its label, a function that draws the cell of a row, and the class of its cells. The first column names the rows. */
export function table(columns, rows, title) {
  const [[, nameOf], ...others] = columns;
  return html`
    <table class="table" aria-label=${title}>
      <thead><tr>${columns.map(([label, , kind = ""]) => html`<th scope="col" class=${kind}>${label}</th>`)}</tr></thead>
      <tbody>
        ${rows.map((row) => html`
          <tr>
            <th scope="row">${nameOf(row)}</th>
            ${others.map(([label, cell, kind = ""]) => html`<td class=${kind} data-label=${label}>${cell(row)}</td>`)}
          </tr>
        `)}
      </tbody>
    </table>
  `;
}

/** Draw a part of a view with its heading. */
export function section(title, hint, content) {
  return html`
    <section class="part" aria-label=${title}>
      <h2>${title}</h2>
      ${hint ? html`<p class="hint">${hint}</p>` : ""}
      ${content}
    </section>
  `;
}
