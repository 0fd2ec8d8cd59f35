// The map of an index as the API answers it: points, the codes of a field, and documents at points.

const ARRAYS = { uint8: Uint8Array, int16: Int16Array, uint32: Uint32Array };

/** Most fields that are tried for colours that nobody chose. */
const MAX_TRIED = 4;

/** Return the numbers of an array of an answer. */
function numbersOf({ dtype, data }) {
  const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
  return new ARRAYS[dtype](bytes.buffer);
}

/** Return the points of an index, and the codes of a field for them if one is named. Throws ApiError. */
export async function fetchMap(api, index, field, signal) {
  const params = new URLSearchParams({ index, ...(field ? { field } : {}) });
  const answer = await api.get(`v1/map?${params}`, { signal });
  const places = Float32Array.from(numbersOf(answer.places), (value) => value / answer.places_per_unit);
  const codes = answer.field ? numbersOf(answer.field.codes) : null;
  return { index, version: answer.index_version, rows: numbersOf(answer.rows), places, field: answer.field, codes };
}

/** Return the points in the colours of the first field whose values they tell apart, or in one colour. Throws ApiError. */
export async function fetchInColour(api, index, fields, signal) {
  for (const field of fields.slice(0, MAX_TRIED)) {
    const map = await fetchMap(api, index, field, signal);
    if (tellsApart(map.field)) return map;
  }
  return fetchMap(api, index, "", signal);
}

/** Return true if the legend has several values, and a quarter of the points one of them. */
function tellsApart({ values, num_others: numOthers, num_without: numWithout }) {
  const numShown = values.reduce((sum, { count }) => sum + count, 0);
  return values.length > 1 && 3 * numShown >= numOthers + numWithout;
}

/** The documents at points of a map, which are asked for once. */
export class MapDocuments {
  #api;
  #map;
  #known = new Map();

  constructor(api, map) {
    this.#api = api;
    this.#map = map;
  }

  /** Return the document at a point if it is known: null for one that was deleted. */
  at(number) {
    return this.#known.get(number);
  }

  /** Ask for the documents at some points that are not known. Throws ApiError. */
  async fetch(numbers, signal) {
    const { index, version, rows } = this.#map;
    const asked = numbers.filter((number) => !this.#known.has(number));
    if (!asked.length) return;
    const body = { index, index_version: version, map_rows: asked.map((number) => rows[number]) };
    const { documents } = await this.#api.post("v1/map/documents", body, { signal });
    const byRow = new Map(documents.map((document) => [document.map_row, document]));
    for (const number of asked) this.#known.set(number, byRow.get(rows[number]) ?? null);
  }
}
