// Points drawn by WebGL: some ten thousand of them in one call, each with a colour of its own.

const VERTEX = `
  attribute vec2 place;
  attribute vec4 colour;
  uniform vec2 centre;
  uniform vec2 scale;
  uniform mediump float size;
  varying vec4 shade;
  void main() {
    gl_Position = vec4((place - centre) * scale, 0.0, 1.0);
    gl_PointSize = size;
    shade = colour;
  }
`;

/** A round point whose edge is as wide as a pixel. */
const FRAGMENT = `
  precision mediump float;
  uniform mediump float size;
  varying vec4 shade;
  void main() {
    float inside = 0.5 * size * (1.0 - 2.0 * distance(gl_PointCoord, vec2(0.5)));
    gl_FragColor = vec4(shade.rgb, 1.0) * shade.a * clamp(inside + 0.5, 0.0, 1.0);
  }
`;

/** The points on a canvas. */
export class PointLayer {
  #gl;
  #program;
  #num = 0;
  #buffers = {};

  /** Return the layer of a canvas, or null where the browser has no WebGL that can draw it. */
  static open(canvas) {
    const gl = canvas.getContext("webgl", { antialias: false, premultipliedAlpha: true });
    const layer = gl && new PointLayer(gl);
    return layer?.isComplete ? layer : null;
  }

  /** True if the program of the layer could be made. */
  get isComplete() {
    return this.#gl.getProgramParameter(this.#program, this.#gl.LINK_STATUS);
  }

  constructor(gl) {
    this.#gl = gl;
    this.#program = gl.createProgram();
    for (const [kind, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(this.#program, shader);
    }
    gl.linkProgram(this.#program);
    gl.useProgram(this.#program);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
  }

  /** Take the places of points, two floats each. */
  setPlaces(places) {
    this.#num = places.length / 2;
    this.#fill("place", places, 2, this.#gl.FLOAT, false);
  }

  /** Take the colours of points: four bytes each, red, green, blue and opacity. */
  setColours(colours) {
    this.#fill("colour", colours, 4, this.#gl.UNSIGNED_BYTE, true);
  }

  #fill(name, values, size, type, isNormal) {
    const gl = this.#gl;
    const place = gl.getAttribLocation(this.#program, name);
    this.#buffers[name] ??= gl.createBuffer();
    gl.bindBuffer(gl.ARRAY_BUFFER, this.#buffers[name]);
    gl.bufferData(gl.ARRAY_BUFFER, values, gl.STATIC_DRAW);
    gl.enableVertexAttribArray(place);
    gl.vertexAttribPointer(place, size, type, isNormal, 0, 0);
  }

  /** Draw the points: `centre` is in the middle, `pixelsPerUnit` is the scale, and `size` that of a point, in pixels. */
  draw(centre, pixelsPerUnit, size) {
    const gl = this.#gl;
    const { width, height } = gl.canvas;
    gl.viewport(0, 0, width, height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    if (!this.#num) return;
    gl.uniform2f(gl.getUniformLocation(this.#program, "centre"), ...centre);
    gl.uniform2f(gl.getUniformLocation(this.#program, "scale"), (2 * pixelsPerUnit) / width, (2 * pixelsPerUnit) / height);
    gl.uniform1f(gl.getUniformLocation(this.#program, "size"), size);
    gl.drawArrays(gl.POINTS, 0, this.#num);
  }
}
