// A vector as a strip of colours, a narrow field for each number.

import { html } from "../vendor/lit-html.js";
import { channelsOf, colourOf } from "./colour.js";

const drawn = new WeakMap();

/** Draw the strip of a vector. */
export function strip(vector, label) {
  requestAnimationFrame(paintAll);
  return html`<canvas class="strip" width=${vector.length} height="1" role="img" aria-label=${label} .vector=${vector}></canvas>`;
}

/** Paint the strips of the page whose vector or colours have changed. */
function paintAll() {
  const colours = ["--accent", "--warm"].map((name) => channelsOf(colourOf(document.body, name)));
  for (const canvas of document.querySelectorAll("canvas.strip")) {
    const state = [canvas.vector, ...colours.flat()].join();
    if (drawn.get(canvas) !== state) paint(canvas, colours);
    drawn.set(canvas, state);
  }
}

function paint(canvas, [positive, negative]) {
  const { vector } = canvas;
  const most = vector.reduce((found, value) => Math.max(found, Math.abs(value)), 1e-9);
  const image = new ImageData(vector.length, 1);
  vector.forEach((value, n) => {
    const opacity = Math.round(255 * Math.sqrt(Math.abs(value) / most));
    image.data.set([...(value < 0 ? negative : positive), opacity], 4 * n);
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
}
