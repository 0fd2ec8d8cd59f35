// What part of a map is shown: its centre and its scale, and where a place of it is on the screen.

/** Least and most that a map is enlarged, by which it shows all documents at 1. */
const MIN_ZOOM = 0.6;
const MAX_ZOOM = 400;

/** Part of the canvas that is free around all points. */
const MARGIN = 0.06;

export class MapView {
  #middle = [0, 0];
  #extent = [1, 1];
  #size = [1, 1];
  centre = [0, 0];
  zoom = 1;

  /** Take the places of all points, and show them all. */
  frame(places) {
    const low = [Infinity, Infinity];
    const high = [-Infinity, -Infinity];
    places.forEach((value, n) => {
      low[n % 2] = Math.min(low[n % 2], value);
      high[n % 2] = Math.max(high[n % 2], value);
    });
    const isEmpty = !places.length;
    this.#middle = low.map((value, axis) => (isEmpty ? 0 : (value + high[axis]) / 2));
    this.#extent = low.map((value, axis) => (isEmpty ? 1 : Math.max(high[axis] - value, 0.01)));
    this.showAll();
  }

  /** Take the size of the canvas in pixels of the style sheet. */
  resize(width, height) {
    this.#size = [Math.max(width, 1), Math.max(height, 1)];
  }

  showAll() {
    this.centre = [...this.#middle];
    this.zoom = 1;
  }

  get pixelsPerUnit() {
    const free = 1 - 2 * MARGIN;
    return this.zoom * Math.min((free * this.#size[0]) / this.#extent[0], (free * this.#size[1]) / this.#extent[1]);
  }

  /** Return where a place is on the canvas. */
  toPixels(x, y) {
    const scale = this.pixelsPerUnit;
    return [this.#size[0] / 2 + (x - this.centre[0]) * scale, this.#size[1] / 2 - (y - this.centre[1]) * scale];
  }

  /** Return the place at a point of the canvas. */
  toPlace(left, top) {
    const scale = this.pixelsPerUnit;
    return [this.centre[0] + (left - this.#size[0] / 2) / scale, this.centre[1] - (top - this.#size[1] / 2) / scale];
  }

  /** Move what is shown by so many pixels. */
  move(right, down) {
    const scale = this.pixelsPerUnit;
    const wanted = [this.centre[0] - right / scale, this.centre[1] + down / scale];
    this.centre = wanted.map((value, axis) => {
      const most = this.#extent[axis] / 2 + 0.05;
      return Math.min(Math.max(value, this.#middle[axis] - most), this.#middle[axis] + most);
    });
  }

  /** Enlarge by a factor, around a point of the canvas or its middle. */
  enlarge(factor, left = this.#size[0] / 2, top = this.#size[1] / 2) {
    const [x, y] = this.toPlace(left, top);
    this.zoom = Math.min(Math.max(this.zoom * factor, MIN_ZOOM), MAX_ZOOM);
    const [nowLeft, nowTop] = this.toPixels(x, y);
    this.move(left - nowLeft, top - nowTop);
  }

  /** Return true if a place is on the canvas. */
  shows(x, y) {
    const [left, top] = this.toPixels(x, y);
    return left >= 0 && top >= 0 && left <= this.#size[0] && top <= this.#size[1];
  }
}
