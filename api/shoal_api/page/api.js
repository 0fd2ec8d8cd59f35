// Requests to the API that serves this page: its key, its errors and its streams of events.

/** The name under which the key is kept until the tab is closed. */
const KEY = "shoal.key";

/** Pause before a stream that has ended is asked for again. */
const RECONNECT_MS = 1500;

/** An error of the API, or `away` if it does not answer. */
export class ApiError extends Error {
  constructor(code, message, status = 0) {
    super(message);
    this.code = code;
    this.status = status;
  }
}

/** The API below the address of the page, wherever a proxy has put it. */
export class Api {
  /** `onUnauthorized` is called when a request is refused because its key is missing or wrong. */
  constructor(onUnauthorized) {
    this.onUnauthorized = onUnauthorized;
  }

  get key() {
    return sessionStorage.getItem(KEY) ?? "";
  }

  set key(value) {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  }

  /** Return the body of the answer. */
  async get(path, options = {}) {
    return (await this.ask("GET", path, undefined, options)).body;
  }

  /** Send a body and return that of the answer. */
  async post(path, body = {}, options = {}) {
    return (await this.ask("POST", path, body, options)).body;
  }

  /** Delete what the path names, and return the body of the answer. */
  async delete(path, body = undefined, options = {}) {
    return (await this.ask("DELETE", path, body, options)).body;
  }

  /** Return the body and the headers of the answer, and the milliseconds that it took. Throws ApiError, AbortError. */
  async ask(method, path, body, { signal } = {}) {
    const started = performance.now();
    const response = await this.#send(method, path, body, "application/json", signal);
    const answer = await response.json();
    return { body: answer, headers: response.headers, ms: performance.now() - started };
  }

  /**
   * Call `onEvent({event, data})` for each event of a stream of server-sent events, and connect again when it ends.
   * Return a function that stops it. An EventSource could not send the key.
   */
  stream(path, onEvent) {
    const stop = new AbortController();
    this.#follow(path, onEvent, stop.signal);
    return () => stop.abort();
  }

  async #follow(path, onEvent, signal) {
    while (!signal.aborted) {
      try {
        const response = await this.#send("GET", path, undefined, "text/event-stream", signal);
        await readEvents(response.body, onEvent);
      } catch (error) {
        if (signal.aborted) return;
        onEvent({ event: "error", data: error });
      }
      await new Promise((resume) => setTimeout(resume, RECONNECT_MS));
    }
  }

  async #send(method, path, body, accept, signal) {
    const headers = { Accept: accept };
    const key = this.key;
    if (key) headers.Authorization = `Bearer ${key}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const data = body === undefined ? undefined : JSON.stringify(body);
    const response = await fetch(path, { method, headers, body: data, signal, cache: "no-store" }).catch((error) => {
      if (error.name === "AbortError") throw error;
      throw new ApiError("away", "The API does not answer. Is it running?");
    });
    if (response.ok) return response;
    const error = await errorOf(response);
    if (error.status === 401 && key !== this.key) return this.#send(method, path, body, accept, signal); // with the new one
    if (error.status === 401) this.onUnauthorized();
    throw error;
  }
}

/** Return the error that an answer tells, whichever protocol's shape it has. */
async function errorOf(response) {
  const body = await response.json().catch(() => ({}));
  const told = typeof body.error === "object" && body.error ? body.error : { message: body.error ?? body.message };
  const message = told.message || `The answer has the status ${response.status}.`;
  return new ApiError(told.code || body.error_type || "unknown", message, response.status);
}

async function readEvents(stream, onEvent) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    blocks.map(eventOf).filter(Boolean).forEach(onEvent);
  }
}

/** Return the event of a block of lines, or null for a comment. */
function eventOf(block) {
  const fields = block.split("\n").map((line) => line.match(/^(event|data): ?(.*)$/)).filter(Boolean);
  const data = fields.filter(([, name]) => name === "data").map(([, , value]) => value).join("\n");
  const event = fields.find(([, name]) => name === "event")?.[2] ?? "message";
  return data ? { event, data: JSON.parse(data) } : null;
}
