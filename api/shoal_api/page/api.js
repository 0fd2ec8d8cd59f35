// Requests to the API that serves this page: its key and its errors.

/** The name under which the key is kept until the tab is closed. */
const KEY = "shoal.key";

/** An error from the API. Its code is `away` if the API does not answer. */
export class ApiError extends Error {
  constructor(code, message, status = 0) {
    super(message);
    this.code = code;
    this.status = status;
  }
}

/** The API. Its address is the page's own, also behind a proxy that serves the page below a path. */
export class Api {
  /** Longest wait for an answer. */
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

  /** Send a body, and return the body of the answer. */
  async post(path, body = {}, options = {}) {
    return (await this.ask("POST", path, body, options)).body;
  }

  /** Return the body and the headers of the answer, and how many milliseconds it took. Throws ApiError, AbortError. */
  async ask(method, path, body = undefined, { signal, timeoutMs = this.timeoutMs } = {}) {
    const started = performance.now();
    const response = await this.#send(method, path, body, AbortSignal.any([AbortSignal.timeout(timeoutMs), ...(signal ? [signal] : [])]));
    const answer = await response.json().catch(refuse);
    return { body: answer, headers: response.headers, ms: performance.now() - started };
  }

  async #send(method, path, body, signal) {
    const key = this.key;
    const headers = { Accept: "application/json", "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
    const response = await fetch(path, { method, headers, body: JSON.stringify(body), signal, cache: "no-store" }).catch((error) => {
      if (error.name === "AbortError") throw error;
      throw new ApiError("away", "The API does not answer. Is it running, and is this device online?");
    });
    if (response.ok) return response;
    const error = await errorOf(response);
    if (error.status === 401 && key !== this.key) return this.#send(method, path, body, signal); // with the new key
    if (error.status === 401) this.onUnauthorized();
    throw error;
  }
}

/** Throw the error of an answer that broke off, or that is not the API's. */
function refuse(error) {
  if (error?.name === "AbortError") throw error;
  throw new ApiError("away", "The answer broke off, or something between this page and the API sent it, such as a proxy.");
}

/** Return the error in an answer, in the shape of any protocol. */
async function errorOf(response) {
  const body = (await response.json().catch(() => null)) ?? {};
  const told = typeof body.error === "object" && body.error ? body.error : { message: body.error ?? body.message };
  if (told.message) return new ApiError(told.code || body.error_type || "unknown", told.message, response.status);
  const message = `The answer has the status ${response.status}, and is not the API's: perhaps a proxy cannot reach the API.`;
  return new ApiError(response.status < 500 ? "unknown" : "away", message, response.status);
}
