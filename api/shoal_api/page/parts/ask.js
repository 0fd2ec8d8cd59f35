// A question to an index: it is read from the address, written to the address, and made into the body of a request.

/** The question before anything is chosen. An empty `index` means the default index. */
export const NOTHING = {
  query: "",
  like: "",
  index: "",
  mode: "hybrid",
  alpha: 0.7,
  rerank: false,
  diversity: 0,
  group: "",
  filter: {},
};

/** Number of hits, or of groups of hits, on a page. */
const PAGE_SIZE = 20;

/** Number of documents that the reranker reads. */
const RERANKED = 50;

/** Number of best documents whose values are counted in a search by meaning, which finds every document, near or far. */
export const FACETS_TOP_N = 100;

/** Largest number of hits in a group. */
const GROUP_SIZE = 3;

/** Names with a meaning in filters. A field with such a name needs a backslash. */
const RESERVED = /^(and|or|not|\\.*)$/;

/** Return the question in the parameters of an address. */
export function askOf(params) {
  const ask = { ...NOTHING };
  for (const [name, start] of Object.entries(NOTHING)) {
    const value = params.get(name);
    if (value !== null) ask[name] = typeof start === "string" ? value : parsed(value, start);
  }
  return ask;
}

/** Return the question as parameters of an address: only values that differ from `NOTHING`. */
export function paramsOf(ask) {
  const params = new URLSearchParams();
  for (const [name, start] of Object.entries(NOTHING)) {
    const [value, unset] = [ask[name], start].map((item) => (typeof item === "string" ? item : JSON.stringify(item)));
    if (value !== unset) params.set(name, value);
  }
  return params;
}

function parsed(text, start) {
  try {
    const value = JSON.parse(text);
    return value !== null && typeof value === typeof start ? value : start;
  } catch {
    return start;
  }
}

/** Return true if there is something to search for. */
export function isAsked(ask) {
  return Boolean(ask.query.trim() || ask.like);
}

/** Return the name of the index that is asked; `indexes` are the served indexes. */
export function indexOf(ask, indexes) {
  const names = Object.keys(indexes ?? {});
  return ask.index || (names.includes("default") || !names.length ? "default" : names[0]);
}

/** Return the abilities of an index; `about` is its description, and `hasWords` is false if its words cannot be searched. */
export function abilitiesOf(about, hasWords) {
  const isPlain = Boolean(about?.engine); // a vector engine finds and filters, and does nothing else
  const hasVectors = about?.dimension !== 0;
  const modes = hasVectors ? ["dense", ...(isPlain || !hasWords ? [] : ["hybrid", "lexical"])] : ["lexical"];
  return { modes, isPlain, hasWords: hasWords && !isPlain, comparesVectors: hasVectors && !isPlain };
}

/** Return the question without the options that the index does not support. */
export function fitted(ask, { modes, isPlain, comparesVectors }) {
  return {
    ...ask,
    mode: modes.includes(ask.mode) ? ask.mode : modes[0],
    like: comparesVectors ? ask.like : "",
    diversity: comparesVectors ? ask.diversity : 0,
    group: isPlain ? "" : ask.group,
    rerank: ask.rerank && !ask.like,
  };
}

/** Return the body of the request that a program would send for a fitted question to the named index. */
export function bodyOf(ask, index) {
  const body = ask.like ? { like: [ask.like] } : { queries: ask.query.trim() };
  body.k = PAGE_SIZE;
  if (index !== "default") body.index = index;
  if (!ask.like && ask.mode !== "dense") body.mode = ask.mode;
  if (!ask.like && ask.mode === "hybrid" && ask.alpha !== NOTHING.alpha) body.alpha = ask.alpha;
  if (Object.keys(ask.filter).length) body.filter = ask.filter;
  if (ask.group) Object.assign(body, { group_by: ask.group, group_size: GROUP_SIZE });
  if (ask.rerank) body.rerank = { top_n: RERANKED };
  if (ask.diversity) body.diversity = ask.diversity;
  return body;
}

/** Return the body with the options for everything that the page shows beside the hits; `counted` are fields whose values are counted. */
export function wholeBodyOf(ask, index, abilities, counted, cursor = "") {
  const body = bodyOf(ask, index);
  if (abilities.isPlain) return body;
  body.explain = true;
  if (abilities.hasWords && !ask.like) body.snippet = {};
  if (!ask.rerank && !ask.diversity) body.cursor = cursor; // these two order hits themselves, and have one page
  if (!counted.length || cursor) return body;
  body.facets = counted;
  if (ask.mode !== "lexical" || ask.like) body.facets_top_n = FACETS_TOP_N;
  return body;
}

/** Return the name by which a filter names a field: a reserved name gets a backslash. */
export function filterName(field) {
  return RESERVED.test(field) ? `\\${field}` : field;
}

/** Return the values to which the filter limits a field; an empty list means no limit. */
export function chosenValues(filter, field) {
  return [filter[filterName(field)]?.in ?? []].flat();
}

/** Return the filter after a click on a value of a field: the value is added to the chosen values, or removed from them. */
export function withValue(filter, field, value) {
  const chosen = chosenValues(filter, field);
  const values = chosen.includes(value) ? chosen.filter((item) => item !== value) : [...chosen, value];
  return withCondition(filter, field, values.length ? { in: values } : {});
}

/** Return the filter with another condition on a field, or without one if the condition is empty. */
export function withCondition(filter, field, condition) {
  const others = withoutCondition(filter, filterName(field));
  return Object.keys(condition).length ? { ...others, [filterName(field)]: condition } : others;
}

/** Return the filter without the condition on a field; `name` is the name that `filterName` returns. */
export function withoutCondition(filter, name) {
  const { [name]: _, ...others } = filter;
  return others;
}
