// The colours of the points of a map: by the codes of a field, with those in the background faint.

import { channelsOf, colourOf } from "./colour.js";

/** The code of a point without a value, and that of the highest value on a scale. */
const NO_VALUE = 255;
const HIGHEST = 254;

/** The opacity of points in front, of many of them, which lie upon each other, and of faint ones. */
const OPAQUE = 225;
const OPAQUE_OF_MANY = 150;
const FAINT = 56;
const MANY = 5000;

/** Return the names of the custom properties that have the colours of a field's values; a value of most points is grey. */
export function coloursOf({ values, num_others: numOthers }) {
  const [first, ...others] = values.map(({ count }) => count);
  const isMost = others.length && first > others.reduce((sum, count) => sum + count, numOthers);
  return values.map((_, code) => (isMost && !code ? "--map-most" : `--map-${code}`));
}

/** Return the colour of each code, as lists of red, green and blue; a field that is null gives all points one colour. */
export function paletteOf(element, field) {
  const read = (name) => channelsOf(colourOf(element, name));
  const none = read("--map-none");
  if (!field) return Array(256).fill(read("--map-point"));
  if (field.values) {
    const known = [...coloursOf(field).map(read), read("--map-others")];
    return Array.from({ length: 256 }, (_, code) => known[code] ?? none);
  }
  const [low, middle, high] = ["--map-low", "--map-middle", "--map-high"].map(read);
  const between = (one, other, share) => one.map((channel, n) => channel + (other[n] - channel) * share);
  const at = (share) => (share < 0.5 ? between(low, middle, 2 * share) : between(middle, high, 2 * share - 1));
  return Array.from({ length: 256 }, (_, code) => (code === NO_VALUE ? none : at(code / HIGHEST)));
}

/**
 * Return four bytes for each point. `codes` may be null. Those whose code `isInFront` returns false for are faint.
 */
export function pointColours(num, codes, palette, isInFront) {
  const colours = new Uint8Array(4 * num);
  const opaque = num > MANY ? OPAQUE_OF_MANY : OPAQUE;
  for (let n = 0; n < num; n += 1) {
    const code = codes ? codes[n] : 0;
    colours.set(palette[code], 4 * n);
    colours[4 * n + 3] = isInFront(code) ? opaque : FAINT;
  }
  return colours;
}
