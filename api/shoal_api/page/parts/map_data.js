// The map of an index as the API answers it: points, the codes of a field, and documents at points.

const ARRAYS = { uint8: Uint8Array, int16: Int16Array, uint32: Uint32Array };

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
