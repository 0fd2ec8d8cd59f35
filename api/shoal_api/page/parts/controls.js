// Controls: a choice of a few words, a list, a slider from 0 to 1, a box to tick; and a function that copies a text.

import { html } from "../vendor/lit-html.js";

/** Draw a row of words, one of them chosen; `words` has the label of each. */
export function segmented(label, words, chosen, onChange) {
  return html`
    <div class="segmented" role="group" aria-label=${label}>
      ${Object.entries(words).map(([word, text]) => html`
        <button type="button" aria-pressed=${word === chosen} @click=${() => onChange(word)}>${text}</button>
      `)}
    </div>
  `;
}

/** Draw a list with one item chosen; `items` has the label of each. An unknown item, as from an old address, is shown as it is. */
export function choice(label, items, chosen, onChange) {
  const all = Object.hasOwn(items, chosen) ? items : { [chosen]: chosen, ...items };
  return html`
    <label class="field">
      <span>${label}</span>
      <select @change=${(event) => onChange(event.target.value)}>
        ${Object.entries(all).map(([name, text]) => html`<option value=${name} .selected=${name === chosen}>${text}</option>`)}
      </select>
    </label>
  `;
}

/** Draw a slider from 0 to 1 with the `meaning` of its value. */
export function share(label, value, meaning, onChange) {
  return html`
    <label class="field">
      <span>${label} <span class="value">${meaning}</span></span>
      <input type="range" min="0" max="1" step="0.05" .value=${String(value)} @input=${(event) => onChange(+event.target.value)}>
    </label>
  `;
}

/** Draw a box to tick. */
export function tick(label, value, onChange) {
  return html`
    <label class="tick">
      <input type="checkbox" .checked=${value} @change=${(event) => onChange(event.target.checked)}><span>${label}</span>
    </label>
  `;
}

/** Copy a text. On a page that comes from another machine by plain HTTP, browsers offer only an older way, not the clipboard. */
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const focused = document.activeElement;
  const area = Object.assign(document.createElement("textarea"), { value: text });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
  focused?.focus();
}
