// What is drawn on a map over its points: hits with their numbers, the query, the point under the pointer, and the lasso.

const HIT_RADIUS = 9;

/** Draw all marks; `view` says where places are, and `colours` has those of the style. */
export function drawMarks(context, view, { marks, query, pointed, lasso }, colours) {
  const ratio = devicePixelRatio;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, context.canvas.width, context.canvas.height);
  if (query) drawRays(context, view, query, marks, colours);
  for (const mark of [...marks].reverse()) drawHit(context, view, mark, colours);
  if (query) drawQuery(context, view, query, colours);
  if (pointed) drawRing(context, view.toPixels(...pointed), colours);
  if (lasso.length > 1) drawLasso(context, lasso, colours);
}

function drawRays(context, view, query, marks, colours) {
  context.strokeStyle = colours.warm;
  context.globalAlpha = 0.28;
  context.lineWidth = 1;
  for (const { place } of marks) {
    context.beginPath();
    context.moveTo(...view.toPixels(...query));
    context.lineTo(...view.toPixels(...place));
    context.stroke();
  }
  context.globalAlpha = 1;
}

function drawHit(context, view, { place, label, isStrong }, colours) {
  const [left, top] = view.toPixels(...place);
  context.beginPath();
  context.arc(left, top, isStrong ? HIT_RADIUS + 4 : HIT_RADIUS, 0, 2 * Math.PI);
  context.fillStyle = isStrong ? colours.ink : colours.warm;
  context.fill();
  context.strokeStyle = colours.panel;
  context.lineWidth = 2;
  context.stroke();
  context.fillStyle = colours.panel;
  context.font = `600 ${isStrong ? 12 : 10}px ${colours.font}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(label, left, top + 0.5);
}

/** Draw a star with four points. */
function drawQuery(context, view, place, colours) {
  const [left, top] = view.toPixels(...place);
  context.beginPath();
  for (let n = 0; n < 8; n += 1) {
    const radius = n % 2 ? 4.5 : 13;
    context.lineTo(left + radius * Math.sin((n * Math.PI) / 4), top - radius * Math.cos((n * Math.PI) / 4));
  }
  context.closePath();
  context.fillStyle = colours.ink;
  context.strokeStyle = colours.panel;
  context.lineWidth = 2;
  context.stroke();
  context.fill();
}

function drawRing(context, [left, top], colours) {
  context.beginPath();
  context.arc(left, top, 8, 0, 2 * Math.PI);
  context.strokeStyle = colours.panel;
  context.lineWidth = 4;
  context.stroke();
  context.strokeStyle = colours.ink;
  context.lineWidth = 2;
  context.stroke();
}

function drawLasso(context, lasso, colours) {
  context.beginPath();
  lasso.forEach(([left, top]) => context.lineTo(left, top));
  context.closePath();
  context.fillStyle = colours.accent;
  context.globalAlpha = 0.12;
  context.fill();
  context.globalAlpha = 1;
  context.strokeStyle = colours.accent;
  context.lineWidth = 1.5;
  context.setLineDash([5, 4]);
  context.stroke();
  context.setLineDash([]);
}

/** Return true if a point is within a polygon, by how often a line to the right crosses its sides. */
export function isWithin(polygon, left, top) {
  let isInside = false;
  polygon.forEach(([x, y], n) => {
    const [beforeX, beforeY] = polygon.at(n - 1);
    if (y > top !== beforeY > top && left < ((beforeX - x) * (top - y)) / (beforeY - y) + x) isInside = !isInside;
  });
  return isInside;
}
