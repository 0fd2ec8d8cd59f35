// A chart of the last ten minutes: an element that draws lines or layers, names them, and shows their values in a table.

import uPlot from "../vendor/uplot.js";
import { channelsOf, colourOf } from "./colour.js";
import { clock } from "./quantity.js";

const HEIGHT = 150;

/** If two samples are more than this many intervals apart, lines have a gap between them. */
const GAP = 3;

/** Shortest time that a chart shows, in seconds, even if there are samples of a shorter time only. */
const LEAST_S = 120;

/** Allowed distances between two times on the axis, in seconds: whole minutes. */
const MINUTES = [60, 120, 300];

/** Largest number of rows of the table that shows the chart's values. */
const TABLE_ROWS = 10;

/** Lets all charts show their values at the place of the pointer. */
const SYNC = uPlot.sync("pool");

/**
 * The properties of a chart are its `title`; `times` in Unix seconds, `everyS` apart and kept for `keptS`; `series` of {label, colour, values}, with the
 * name of a custom property as colour; `format`, which returns a value as text; `steps`, the allowed distances between values on the axis, if only some
 * are allowed; and `isLayered`, true if values are parts of a whole and are drawn on top of each other.
 */
class Chart extends HTMLElement {
  #content = null;
  #plot = null;
  #colours = [];
  #size = new ResizeObserver(() => this.#fit());

  set content(content) {
    this.#content = content;
    if (this.isConnected) this.#draw();
  }

  connectedCallback() {
    this.#size.observe(this);
    if (this.#content) this.#draw();
  }

  disconnectedCallback() {
    this.#size.disconnect();
    this.#plot?.destroy();
    this.#plot = null;
    this.replaceChildren();
  }

  #draw() {
    const { series } = this.#content;
    this.#colours = series.map(({ colour }) => colourOf(this, colour));
    if (this.#plot) this.#plot.setData(this.#data(), false);
    else this.#make();
    this.#rescale();
    this.#tell(this.#plot.cursor.idx);
    this.#tabulate();
  }

  #make() {
    const { title, series } = this.#content;
    const legend = element("ul", {}, ...series.map(({ label }) => element("li", {}, element("i"), label, element("b"))));
    const canvas = element("div", { ariaHidden: "true" });
    const table = element("details", {}, element("summary", {}, "as a table"), element("table", { className: "table" }));
    table.addEventListener("toggle", () => this.#tabulate());
    this.append(element("h3", {}, title), legend, canvas, table);
    this.#plot = new uPlot(this.#options(), this.#data(), canvas);
  }

  #options() {
    const { series, isLayered, format, steps } = this.#content;
    const lines = series.map(({ label }, n) => ({
      label,
      stroke: () => this.#colours[n],
      fill: isLayered ? () => layerOf(this, this.#colours[n]) : n === 0 ? () => shadeOf(this.#colours[n]) : undefined,
      width: 1.5,
      points: { show: false },
    }));
    const axis = { stroke: () => colourOf(this, "--ink-faint"), font: "11px Shoal Sans, system-ui, sans-serif", ticks: { show: false } };
    const grid = { stroke: () => colourOf(this, "--line"), width: 1 };
    return {
      width: this.querySelector("div").clientWidth || 300,
      height: HEIGHT,
      legend: { show: false },
      cursor: { sync: { key: SYNC.key }, drag: { x: false, y: false }, points: { size: 6 }, y: false },
      scales: { x: { time: true }, y: { range: (_, __, most) => [0, roundedUp(most, steps)] } },
      series: [{}, ...(isLayered ? lines.reverse() : lines)],
      axes: [
        { ...axis, grid: { show: false }, size: 22, space: 70, incrs: MINUTES, values: (_, splits) => splits.map((time) => clock(time).slice(0, 5)) },
        { ...axis, grid, size: 52, space: 32, incrs: steps, values: (_, splits) => splits.map(format) },
      ],
      hooks: { setCursor: [(plot) => this.#tell(plot.cursor.idx)] },
    };
  }

  /** Return the columns in uPlot's form, with a gap where samples are missing; each layer lies on the layers below. */
  #data() {
    const { times, everyS, series, isLayered } = this.#content;
    const columns = isLayered ? layers(series.map(({ values }) => values)).reverse() : series.map(({ values }) => values);
    const gaps = times.flatMap((time, n) => (n && time - times[n - 1] > GAP * everyS ? [n] : []));
    const place = (column, n) => (gaps.includes(n) ? [null, column[n]] : [column[n]]);
    const xs = times.flatMap((time, n) => (gaps.includes(n) ? [(time + times[n - 1]) / 2, time] : [time]));
    return [xs, ...columns.map((column) => times.flatMap((_, n) => place(column, n)))];
  }

  #rescale() {
    const { times, keptS } = this.#content;
    const last = times.at(-1) ?? Date.now() / 1000;
    const shownS = Math.min(keptS, Math.max(LEAST_S, last - (times[0] ?? last)));
    this.#plot.setScale("x", { min: last - shownS, max: last });
  }

  #fit() {
    const width = this.#plot?.root.parentElement.clientWidth;
    if (width) this.#plot.setSize({ width, height: HEIGHT });
  }

  /** Show the values under the pointer, or the last ones. */
  #tell(index) {
    if (!this.#plot || !this.#content.series.length) return;
    const { series, format, times } = this.#content;
    const at = index == null ? times.length - 1 : nearest(times, this.#plot.data[0][index]);
    this.querySelectorAll("li").forEach((item, n) => {
      item.querySelector("i").style.background = this.#colours[n];
      item.querySelector("b").textContent = format(series[n].values[at]);
    });
  }

  /** Write samples at equal distances into the table, the newest first, if the table is open. */
  #tabulate() {
    const details = this.querySelector("details");
    if (!details?.open) return;
    const { series, format, times, title } = this.#content;
    const step = Math.max(1, Math.ceil(times.length / TABLE_ROWS));
    const places = times.map((_, n) => times.length - 1 - n * step).filter((n) => n >= 0);
    const rows = places.map((n) => [clock(times[n]), ...series.map(({ values }) => format(values[n]))]);
    details.querySelector("table").replaceChildren(
      element("caption", { className: "hidden" }, title),
      element("thead", {}, row("th", ["Time", ...series.map(({ label }) => label)], "col")),
      element("tbody", {}, ...rows.map((cells) => row("td", cells))),
    );
  }
}

function row(name, cells, scope) {
  return element("tr", {}, ...cells.map((cell, n) => element(n ? name : "th", { scope: scope ?? (n ? "" : "row") }, cell)));
}

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

/** Return for each column its sum with all columns before it; unknown values count as 0. */
function layers(columns) {
  const sums = [];
  for (const column of columns) {
    const below = sums.at(-1);
    sums.push(column.map((value, n) => (value == null && !below ? null : (value ?? 0) + (below?.[n] ?? 0))));
  }
  return sums;
}

function nearest(times, time) {
  return times.reduce((best, at, n) => (Math.abs(at - time) < Math.abs(times[best] - time) ? n : best), 0);
}

/** Return the smallest step, or else the smallest of 1, 2 and 5 times a power of ten, that is not below `most`. */
function roundedUp(most, steps) {
  if (!(most > 0)) return 1;
  const round = steps?.find((step) => step >= most);
  if (round) return round;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= most);
}

/** Return the colour of the area below a line. */
function shadeOf(colour) {
  return `rgba(${channelsOf(colour).join(", ")}, 0.12)`;
}

/** Return the colour of a layer, which hides the layers behind it. */
function layerOf(element, colour) {
  const [top, below] = [colour, colourOf(element, "--panel")].map(channelsOf);
  return `rgb(${top.map((channel, n) => Math.round(0.55 * channel + 0.45 * below[n])).join(", ")})`;
}

customElements.define("shoal-chart", Chart);
