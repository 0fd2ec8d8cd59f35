// Colours of the style as numbers, for drawings on a canvas.

/** Return the colour that a custom property has in an element, as `rgb(…)`. */
export function colourOf(element, name) {
  const probe = element.appendChild(document.createElement("span"));
  probe.style.color = `var(${name})`;
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

/** Return red, green and blue of a colour `rgb(…)`, each from 0 to 255. */
export function channelsOf(colour) {
  return colour.match(/[\d.]+/g).slice(0, 3).map(Number);
}
