// Filters by the fields of an index: the values of keywords with their counts, and ranges of numbers and dates.

import { html } from "../vendor/lit-html.js";
import { chosenValues, FACETS_TOP_N, filterName, withCondition, withoutCondition, withValue } from "./ask.js";

/** Largest number of fields that are shown, and of values of each field. */
const MAX_FIELDS = 6;
const MAX_VALUES = 6;

/** Draw each condition of a filter as a button that removes the condition; `onChange` is called with the remaining filter. */
export function chosenFilters(filter, onChange) {
  const names = Object.keys(filter);
  if (!names.length) return "";
  return html`
    <p class="row" role="group" aria-label="Filters in force">
      ${names.map((name) => html`
        <button class="chip" aria-pressed="true" title="Take this filter away" @click=${() => onChange(withoutCondition(filter, name))}>
          <span>${name}</span> ${told(filter[name])} ×</button>
      `)}
    </p>
  `;
}

/** Return a condition in words. */
function told(condition) {
  const { in: values, gte, lte, ...others } = Object(condition);
  if (Array.isArray(condition) || Object.keys(others).length) return JSON.stringify(condition);
  const parts = [[values ?? []].flat().join(" or "), gte === undefined ? "" : `from ${gte}`, lte === undefined ? "" : `to ${lte}`];
  return parts.filter(Boolean).join(" ");
}

/** Return the fields whose values are counted; `kinds` has the kind of each field of the index. */
export function countedFields(kinds) {
  return Object.keys(kinds ?? {}).filter((name) => ["keyword", "boolean"].includes(kinds[name])).slice(0, MAX_FIELDS);
}

/** Draw the filters, the most frequent values first; `onChange` is called with the new filter. */
export function facetPanel(kinds, { ask, facets, total }, filter, onChange) {
  const ranges = Object.keys(kinds ?? {}).filter((name) => ["number", "date"].includes(kinds[name])).slice(0, MAX_FIELDS);
  const counted = Object.entries(facets ?? {}).filter(([, { values }]) => values.length);
  const isAll = ask.mode === "lexical" && !ask.like;
  const num = isAll ? total : Math.min(FACETS_TOP_N, total);
  return [
    counted.length ? html`<p class="hint">Counts of ${isAll ? "all" : "the best"} ${num.toLocaleString("en")}</p>` : "",
    ...counted.map(([name, { values }]) => valueList(name, values, num, filter, onChange)),
    ...ranges.map((name) => range(name, kinds[name], filter, onChange)),
  ];
}

function valueList(name, values, num, filter, onChange) {
  const chosen = chosenValues(filter, name);
  const known = values.map(({ value }) => value);
  const gone = chosen.filter((value) => !known.includes(value)).map((value) => ({ value, count: 0 }));
  const shown = [...gone, ...values.slice(0, MAX_VALUES)];
  return html`
    <fieldset class="facet">
      <legend>${name}</legend>
      ${shown.map(({ value, count }) => html`
        <label>
          <input type="checkbox" .checked=${chosen.includes(value)} @change=${() => onChange(withValue(filter, name, value))}>
          <span class="value">${String(value)}</span>
          <span class="count">${count.toLocaleString("en")}</span>
          <span class="bar" aria-hidden="true"><span .style=${`--share:${count / num}`}></span></span>
        </label>
      `)}
    </fieldset>
  `;
}

function range(name, kind, filter, onChange) {
  const condition = filter[filterName(name)] ?? {};
  const bound = (word) => (event) => {
    const { value } = event.target;
    const { [word]: _, ...others } = condition;
    const given = kind === "number" ? Number(value) : value;
    onChange(withCondition(filter, name, value === "" ? others : { ...others, [word]: given }));
  };
  const type = kind === "number" ? "number" : "date";
  return html`
    <fieldset class="facet range">
      <legend>${name}</legend>
      <label><span>from</span><input type=${type} step="any" .value=${String(condition.gte ?? "")} @change=${bound("gte")}></label>
      <label><span>to</span><input type=${type} step="any" .value=${String(condition.lte ?? "")} @change=${bound("lte")}></label>
    </fieldset>
  `;
}
