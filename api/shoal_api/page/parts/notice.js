// Notices: an error, or the reason why a view is empty.

import { html } from "../vendor/lit-html.js";

const TITLES = {
  away: "Not reachable",
  forbidden: "This key may not do that",
  index_mismatch: "This version of the index cannot be searched in this way",
  invalid_request: "That cannot be asked",
  not_ready: "The service is not ready",
  overloaded: "The service has more to do than it can take",
  rate_limited: "The key has used up its rate",
  timeout: "No answer in time",
  too_large: "That is too much for one request",
  unauthorized: "This needs a key",
  unavailable: "Redis does not answer",
  unknown_index: "There is no such index",
  unsupported: "The workers cannot do that",
};

/** Draw an error of the API with its own message. If another attempt may help, a button calls `onAgain`. */
export function notice(error, onAgain) {
  const mayPass = error.status < 400 || error.status === 429 || error.status >= 500;
  return html`
    <div class="notice" data-kind="error" role="alert">
      <h2>${TITLES[error.code] ?? "That went wrong"}</h2>
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
