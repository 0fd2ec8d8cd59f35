// The canvas of a map: an element that draws points, and is moved, enlarged and asked by mouse, touch and keyboard.

import { render } from "../vendor/lit-html.js";
import { colourOf } from "./colour.js";
import { drawMarks } from "./map_marks.js";
import { MapView } from "./map_view.js";
import { paletteOf, pointColours } from "./point_colours.js";
import { PointLayer } from "./point_layer.js";

/** Distance from the pointer within which a point is meant, and below which a press is no drag, in pixels. */
const NEAR = 14;
const STILL = 5;

/** Pixels and factor of a press of a key. */
const STEP = 60;
const FACTOR = 1.5;

const MOVES = { ArrowLeft: [STEP, 0], ArrowRight: [-STEP, 0], ArrowUp: [0, STEP], ArrowDown: [0, -STEP] };
const FACTORS = { "+": FACTOR, "=": FACTOR, "-": 1 / FACTOR };

/**
 * What a map shows: `points` with `places`, two floats for each; `codes` of a `field`, or null; `isInFront(code)`, false for
 * faint points, which is asked again when the items of `emphasis` change; `marks` of {place, label, isStrong}; the place of
 * the `query`, or null; the `pointed` point, and the `tip` beside it. It calls `onPoint(n)` with the point that is meant, or
 * null, and `onMissing()` where there is no WebGL.
 */
class MapCanvas extends HTMLElement {
  #content = null;
  #coloured = [];
  #styles = {};
  #layer = null;
  #view = new MapView();
  #pointers = new Map();
  #moved = 0;
  #isDrawn = true;
  #size = new ResizeObserver(() => this.#fit());
  #dark = matchMedia("(prefers-color-scheme: dark)");
  #onDark = () => this.#content && this.#recolour();

  set content(content) {
    const before = this.#content;
    this.#content = content;
    if (!this.#layer) return;
    if (before?.points !== content.points) this.#take();
    this.#recolour();
    render(content.tip ?? "", this.#part(".tip"));
  }

  connectedCallback() {
    this.replaceChildren(canvas("points"), canvas("over"), Object.assign(document.createElement("div"), { className: "tip" }));
    this.#part(".points").setAttribute("aria-hidden", "true");
    const over = this.#part(".over");
    Object.entries(OVER).forEach(([name, value]) => over.setAttribute(name, value));
    for (const [event, react] of Object.entries(this.#reactions())) over.addEventListener(event, react, { passive: false });
    this.#part(".points").addEventListener("webglcontextlost", (event) => event.preventDefault());
    this.#part(".points").addEventListener("webglcontextrestored", () => this.#open());
    this.#dark.addEventListener("change", this.#onDark);
    this.#size.observe(this);
    this.#open();
  }

  disconnectedCallback() {
    this.#size.disconnect();
    this.#dark.removeEventListener("change", this.#onDark);
    this.#layer = null;
  }

  /** Enlarge what is in the middle. */
  enlarge(factor) {
    this.#view.enlarge(factor);
    this.#later();
  }

  /** Show all points. */
  showAll() {
    this.#view.showAll();
    this.#later();
  }

  /** Show a place, unless it is in sight. */
  showPlace(place) {
    if (!this.#view.shows(...place)) this.#view.centre = [...place];
    this.#later();
  }

  /** Return the numbers of the points nearest to a point. */
  nearest(number, most) {
    const { places } = this.#content.points;
    const [x, y] = places.subarray(2 * number, 2 * number + 2);
    const distances = Float32Array.from({ length: places.length / 2 }, (_, n) => (places[2 * n] - x) ** 2 + (places[2 * n + 1] - y) ** 2);
    const least = distances.toSorted()[most - 1] ?? Infinity;
    return [...distances.keys()].filter((n) => distances[n] <= least).slice(0, most);
  }

  #part(name) {
    return this.querySelector(name);
  }

  #open() {
    this.#layer = PointLayer.open(this.#part(".points"));
    this.#coloured = [];
    if (!this.#layer) this.#content?.onMissing();
    else if (this.#content) this.#take();
  }

  #take() {
    this.#view.frame(this.#content.points.places);
    this.#layer.setPlaces(this.#content.points.places);
    this.#coloured = [];
    this.#fit();
    this.#recolour();
  }

  /** Give the points their colours, if these have changed. */
  #recolour() {
    const { points, codes, field, isInFront, emphasis } = this.#content;
    const now = [codes, colourOf(this, "--panel"), ...emphasis];
    if (now.some((item, n) => item !== this.#coloured[n])) {
      this.#coloured = now;
      this.#styles = this.#readStyles();
      this.#layer.setColours(pointColours(points.places.length / 2, codes, paletteOf(this, field), isInFront));
    }
    this.#later();
  }

  #fit() {
    const { width, height } = this.getBoundingClientRect();
    this.#view.resize(width, height);
    for (const each of this.querySelectorAll("canvas")) {
      each.width = Math.round(width * devicePixelRatio);
      each.height = Math.round(height * devicePixelRatio);
    }
    this.#later();
  }

  #later() {
    if (!this.#isDrawn) return;
    this.#isDrawn = false;
    requestAnimationFrame(() => {
      this.#isDrawn = true;
      if (this.#layer && this.#content) this.#draw();
    });
  }

  #draw() {
    const { points, marks, query, pointed } = this.#content;
    const scale = this.#view.pixelsPerUnit * devicePixelRatio;
    this.#layer.draw(this.#view.centre, scale, this.#pointSize() * devicePixelRatio);
    const place = pointed === null ? null : points.places.subarray(2 * pointed, 2 * pointed + 2);
    drawMarks(this.#part(".over").getContext("2d"), this.#view, { marks, query, pointed: place }, this.#styles);
    this.#placeTip(place);
  }

  /** Return the size of a point: small where there are many, larger as the map is enlarged. */
  #pointSize() {
    const num = this.#content.points.places.length / 2;
    const first = Math.min(9, Math.max(3.2, 140 / Math.sqrt(num)));
    return Math.min(14, first * this.#view.zoom ** 0.3);
  }

  #readStyles() {
    const read = (name) => colourOf(this, `--${name}`);
    const [ink, panel, warm] = ["ink", "panel", "warm"].map(read);
    return { ink, panel, warm, font: getComputedStyle(this).fontFamily };
  }

  /** Put the tip beside its point, on the side that has room. */
  #placeTip(place) {
    const tip = this.#part(".tip");
    tip.toggleAttribute("data-shown", Boolean(place && this.#content.tip));
    if (!place) return;
    const [left, top] = this.#view.toPixels(...place);
    const { width, height } = this.getBoundingClientRect();
    const room = Math.max(0, width - tip.offsetWidth - 8);
    const below = top + 16 + tip.offsetHeight < height;
    tip.style.setProperty("left", `${Math.min(Math.max(8, left - tip.offsetWidth / 2), room)}px`);
    tip.style.setProperty("top", `${Math.max(4, below ? top + 16 : top - 16 - tip.offsetHeight)}px`);
  }

  /** Return the number of the point that is meant by a point of the canvas, or null. */
  #pointAt(atLeft, atTop) {
    const { places } = this.#content.points;
    const [x, y] = this.#view.toPlace(atLeft, atTop);
    let found = null;
    let nearest = (NEAR / this.#view.pixelsPerUnit) ** 2;
    for (let n = 0; n < places.length / 2; n += 1) {
      const distance = (places[2 * n] - x) ** 2 + (places[2 * n + 1] - y) ** 2;
      if (distance < nearest) {
        nearest = distance;
        found = n;
      }
    }
    return found;
  }

  #reactions() {
    return {
      pointerdown: (event) => this.#press(event),
      pointermove: (event) => this.#drag(event),
      pointerup: (event) => this.#release(event),
      pointercancel: (event) => this.#release(event),
      pointerleave: (event) => event.pointerType === "mouse" && this.#point(null),
      wheel: (event) => this.#wheel(event),
      keydown: (event) => this.#key(event),
    };
  }

  #press(event) {
    event.target.setPointerCapture(event.pointerId);
    this.#pointers.set(event.pointerId, at(event));
    this.#moved = 0;
  }

  #drag(event) {
    const before = this.#pointers.get(event.pointerId);
    const now = at(event);
    if (!before) return this.#content && this.#point(this.#pointAt(...now));
    this.#moved += Math.hypot(now[0] - before[0], now[1] - before[1]);
    if (this.#pointers.size === 1) this.#view.move(now[0] - before[0], now[1] - before[1]);
    else this.#pinch(event.pointerId, before, now);
    this.#pointers.set(event.pointerId, now);
    this.#later();
  }

  /** Enlarge by the distance of two fingers, around the middle between them, and move with it. */
  #pinch(moved, before, now) {
    const [, other] = [...this.#pointers].find(([id]) => id !== moved);
    const distance = ([left, top]) => Math.max(1, Math.hypot(left - other[0], top - other[1]));
    const middle = ([left, top]) => [(left + other[0]) / 2, (top + other[1]) / 2];
    this.#view.move(middle(now)[0] - middle(before)[0], middle(now)[1] - middle(before)[1]);
    this.#view.enlarge(distance(now) / distance(before), ...middle(now));
  }

  #release(event) {
    if (!this.#pointers.delete(event.pointerId)) return;
    if (this.#moved < STILL && this.#content) this.#point(this.#pointAt(...at(event)));
    this.#later();
  }

  #point(number) {
    if (this.#content && number !== this.#content.pointed) this.#content.onPoint(number);
  }

  #wheel(event) {
    event.preventDefault();
    this.#view.enlarge(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.002)), ...at(event));
    this.#later();
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (MOVES[event.key]) this.#view.move(...MOVES[event.key]);
    else if (FACTORS[event.key]) this.#view.enlarge(FACTORS[event.key]);
    else if (["0", "Home"].includes(event.key)) this.#view.showAll();
    else return;
    event.preventDefault();
    this.#later();
  }
}

/** What the canvas is for those who do not see it, and for the keyboard. */
const OVER = { tabindex: "0", role: "application", "aria-label": "Map of the documents", "aria-describedby": "map-summary map-keys" };

function canvas(className) {
  return Object.assign(document.createElement("canvas"), { className });
}

function at(event) {
  return [event.offsetX, event.offsetY];
}

customElements.define("shoal-map", MapCanvas);
