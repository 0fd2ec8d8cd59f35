// Quantities in a readable form. An unknown value is a dash.

const UNKNOWN = "–";

/** Units of time, each with its seconds and the number of such units from which the next unit is used. */
const TIMES = [["ms", 0.001, 1000], ["s", 1, 60], ["min", 60, 60], ["h", 3600, 48], ["days", 86400, Infinity]];

const SIZES = [["KB", 2 ** 10], ["MB", 2 ** 20], ["GB", 2 ** 30]];

function isKnown(value) {
  return Number.isFinite(value);
}

/** Return the number with few digits: 0.42, 7.5, 1,240. */
export function amount(value) {
  if (!isKnown(value)) return UNKNOWN;
  const digits = value >= 100 || Number.isInteger(value) ? 0 : value >= 10 ? 1 : 2;
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

/** Return a time in seconds in a suitable unit, from a minute on together with the next smaller unit: 1 min 40 s. */
export function duration(seconds) {
  if (!isKnown(seconds)) return UNKNOWN;
  const n = TIMES.findIndex(([, size, most]) => seconds < size * most);
  const [unit, size] = TIMES[n];
  if (size < 60) return `${amount(seconds / size)} ${unit}`;
  const [smaller, part] = TIMES[n - 1];
  const parts = Math.floor(seconds / part);
  const [whole, rest] = [Math.floor((parts * part) / size), parts % (size / part)];
  return rest ? `${whole} ${unit} ${rest} ${smaller}` : `${whole} ${unit}`;
}

/** Return how long ago `time` was at `now`; both are in Unix seconds. */
export function ago(time, now) {
  if (!isKnown(time) || !time) return UNKNOWN;
  return now - time < 1 ? "now" : `${duration(Math.round(now - time))} ago`;
}

/** Return a share from 0 to 1 in per cent. */
export function percent(share) {
  return isKnown(share) ? `${amount(Math.round(share * 1000) / 10)} %` : UNKNOWN;
}

/** Return a number of bytes. */
export function size(bytes) {
  if (!isKnown(bytes)) return UNKNOWN;
  const [unit, of] = SIZES.findLast(([, of]) => bytes >= of) ?? SIZES[0];
  return `${amount(bytes / of)} ${unit}`;
}

/** Return the time of the day, in the browser's time zone, of a time in Unix seconds. */
export function clock(time) {
  return new Date(time * 1000).toLocaleTimeString("en-GB");
}
