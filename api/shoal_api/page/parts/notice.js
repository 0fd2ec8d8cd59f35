// Notices: an error, or the reason why a view is empty.

import { html } from "../vendor/lit-html.js";

const TITLES = {
  away: "Not reachable",
  forbidden: "This key has no permission for this",
  index_mismatch: "This version of the index cannot be searched in this way",
  invalid_request: "The request is not valid",
  not_ready: "The service is not ready",
  overloaded: "The service is overloaded",
  rate_limited: "The key has reached its rate limit",
  timeout: "No answer in time",
  too_large: "The request is too large",
  unauthorized: "An API key is required",
  unavailable: "Redis does not answer",
  unknown_index: "There is no such index",
  unsupported: "The workers do not support this",
};

/** Draw an error of the API with its own message. If another attempt may help, a button calls `onAgain`. */
export function notice(error, onAgain) {
  const mayPass = error.status < 400 || error.status === 429 || error.status >= 500;
  return html`
    <div class="notice" data-kind="error" role="alert">
      <h2>${TITLES[error.code] ?? "Something went wrong"}</h2>
      <p>${error.message}</p>
      ${onAgain && mayPass ? html`<p><button class="button" @click=${() => onAgain()}>Try again</button></p>` : ""}
    </div>
  `;
}

/** Draw the reason why a view is empty, and the remedy. */
export function empty(title, remedy) {
  return html`
    <div class="notice" data-kind="empty">
      <h2>${title}</h2>
      <p>${remedy}</p>
    </div>
  `;
}
