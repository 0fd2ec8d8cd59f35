// What is drawn on a map over its points: hits with their numbers, the query, and the point under the pointer.

const HIT_RADIUS = 9;

/** Draw all marks; `view` says where places are, and `colours` has those of the style. */
export function drawMarks(context, view, { marks, query, pointed }, colours) {
  const ratio = devicePixelRatio;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, context.canvas.width, context.canvas.height);
  if (query) drawRays(context, view, query, marks, colours);
  for (const mark of [...marks].reverse()) drawHit(context, view, mark, colours);
  if (query) drawQuery(context, view, query, colours);
  if (pointed) drawRing(context, view.toPixels(...pointed), colours);
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
