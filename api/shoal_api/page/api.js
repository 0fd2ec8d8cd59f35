// Requests to the API that serves this page: its key, its errors and its streams of events.

/** The name under which the key is kept until the tab is closed. */
const KEY = "shoal.key";

/** Pause before a stream that has ended is asked for again. */
const RECONNECT_MS = 1500;

/** Longest time without an event of a stream: the API sends one every few seconds. */
const SILENCE_MS = 20_000;

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
  /** Longest time until an answer is there. */
  timeoutMs = 60_000;

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
  async ask(method, path, body, { signal, timeoutMs = this.timeoutMs } = {}) {
    const started = performance.now();
    const patience = new Patience(timeoutMs, signal);
    const response = await this.#send(method, path, body, "application/json", patience.signal);
    const answer = await response.json().catch(refuse);
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
      const patience = new Patience(SILENCE_MS, signal);
      try {
        const response = await this.#send("GET", path, undefined, "text/event-stream", patience.signal);
        if (!response.headers.get("Content-Type")?.startsWith("text/event-stream")) refuse();
        await readEvents(response.body, (event) => {
          patience.renew();
          onEvent(event);
        });
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
      throw new ApiError("away", "The API does not answer. Is it running, and is this device online?");
    });
    if (response.ok) return response;
    const error = await errorOf(response);
    if (error.status === 401 && key !== this.key) return this.#send(method, path, body, accept, signal); // with the new one
    if (error.status === 401) this.onUnauthorized();
    throw error;
  }
}

/** A signal that is aborted with another one, if one is given, or when it was not renewed for so long. */
class Patience {
  #timeout = new AbortController();
  #ms;
  #timer = 0;

  constructor(ms, signal) {
    this.#ms = ms;
    this.signal = signal ? AbortSignal.any([signal, this.#timeout.signal]) : this.#timeout.signal;
    this.renew();
  }

  renew() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#timeout.abort(new ApiError("away", "")), this.#ms);
  }
}

/** Throw the error of an answer that broke off, or that is not the API's. */
function refuse(error) {
  if (error?.name === "AbortError") throw error;
  throw new ApiError("away", "The answer broke off, or something between this page and the API sent it, such as a proxy.");
}

/** Return the error that an answer tells, whichever protocol's shape it has. */
async function errorOf(response) {
  const body = (await response.json().catch(() => null)) ?? {};
  const told = typeof body.error === "object" && body.error ? body.error : { message: body.error ?? body.message };
  if (told.message) return new ApiError(told.code || body.error_type || "unknown", told.message, response.status);
  const message = `The answer has the status ${response.status}, and is not the API's: perhaps a proxy does not reach it.`;
  return new ApiError(response.status < 500 ? "unknown" : "away", message, response.status);
}

async function readEvents(stream, onEvent) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read().catch(refuse);
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
