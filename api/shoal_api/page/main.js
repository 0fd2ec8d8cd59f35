// The frame of the page: the view that is shown, the state of the service, and the key.

import { html, render } from "./vendor/lit-html.js";
import { Api } from "./api.js";
import { notice } from "./parts/notice.js";
import { banner, serviceOf, STARTING } from "./parts/service.js";
import { keyDialog } from "./parts/key_dialog.js";

/** The names of the views. Addresses and the views' modules have the same names. */
const VIEWS = ["search", "compare", "pool"];

/** Interval at which the page asks for the state of the service. */
const LOOK_EVERY_MS = 5000;

/** Longest wait for the state; and the time that the network may add to the service's own limit for other answers. */
const LOOK_TIMEOUT_MS = 10_000;
const LINK_MS = 30_000;

const state = {
  info: null,
  service: STARTING,
  params: new URLSearchParams(),
  needsKey: false,
  asksKey: false,
  declinesKey: false,
};
const api = new Api(() => state.declinesKey || askKey());
const context = { api, state, render: schedule };

let viewName = "";
let view = null;
let isScheduled = false;
let isLooking = false;

function schedule() {
  if (isScheduled) return;
  isScheduled = true;
  requestAnimationFrame(() => {
    isScheduled = false;
    draw();
  });
}

function draw() {
  for (const link of document.querySelectorAll("[data-view]")) {
    link.ariaCurrent = link.dataset.view === viewName ? "page" : null;
  }
  document.title = view ? `${view.title} · Shoal` : "Shoal";
  document.querySelector("#version").textContent = state.info ? `Shoal ${state.info.version}` : "Shoal";
  render(statusLine(), document.querySelector("#service"));
  render(banner(state.service, askKey), document.querySelector("#banner"));
  if (view && state.service !== STARTING) render(view.view(state), document.querySelector("#main")); // until the service has answered, the page accepts no input
  render(state.asksKey ? keyDialog(api.key, state.service.message, useKey) : "", document.querySelector("#dialog"));
}

function statusLine() {
  const { status, label } = state.service;
  return html`
    <span class="status" data-status=${status} role="status">${label}</span>
    ${state.needsKey ? html`<button class="button quiet" @click=${askKey}>Key</button>` : ""}
  `;
}

/** Open the dialog for the key, unless it is open. */
function askKey() {
  state.needsKey = state.asksKey = true;
  schedule();
}

/** Use the key that was typed in; it is null if the dialog was closed without a key. */
function useKey(key) {
  state.asksKey = false;
  state.declinesKey = key === null; // until a button asks for a key
  if (key !== null) {
    api.key = key;
    state.service = STARTING;
    look();
  }
  schedule();
}

/** Ask for the state of the service, unless a request is under way. If the service is well again or serves other indexes, the view asks again too. */
async function look() {
  if (isLooking) return;
  isLooking = true;
  let [info, error] = [state.info, null];
  try {
    info = await api.get("info", { timeoutMs: LOOK_TIMEOUT_MS });
    api.timeoutMs = 1000 * info.limits.request_timeout_s + LINK_MS;
  } catch (failure) {
    error = failure;
  }
  isLooking = false;
  const [before, served] = [state.service, namesOf(state.info)];
  state.info = info;
  state.service = serviceOf(info, error, Boolean(api.key));
  const isBetter = state.service.status === "ready" && (before.status !== "ready" || namesOf(info) !== served);
  if (before === STARTING || isBetter) enter();
  schedule();
}

function namesOf(info) {
  return Object.keys(info?.indexes ?? {}).sort().join();
}

/** Show the view that the part of the address after # names: #search?query=storm. */
async function route(hash) {
  const [name, query] = hash.slice(1).split("?");
  const next = VIEWS.includes(name) ? name : "search";
  state.params = new URLSearchParams(query);
  view?.leave();
  if (next !== viewName) {
    scrollTo(0, 0);
    [viewName, view] = [next, null];
    const loaded = await import(`./views/${next}.js`).catch(unloaded);
    if (next !== viewName) return;
    view = loaded;
  }
  if (state.service !== STARTING) enter();
  schedule();
}

/** Return the view in place of a view that could not be loaded. */
function unloaded() {
  const error = { status: 0, code: "away", message: "A part of this page could not be loaded." };
  return { title: "Shoal", enter() {}, leave() {}, view: () => notice(error, () => location.reload()) };
}

/** Let the link to a view lead to the last request of the view. */
function keepAddress(hash) {
  const name = hash.slice(1).split("?")[0];
  if (VIEWS.includes(name)) document.querySelector(`nav [data-view="${name}"]`).href = hash;
}

/** Let the view send the request in the address if the address has changed, or else its last request again. */
function enter() {
  if (!view) return;
  view.leave();
  view.enter(context);
  state.params = null;
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the part of the address after # names a view
  document.querySelector("#main").focus();
});
document.addEventListener("visibilitychange", () => document.hidden || look());
addEventListener("hashchange", (event) => {
  keepAddress(new URL(event.oldURL).hash);
  route(new URL(event.newURL).hash); // the old view may have written its own request into the address meanwhile
});
setInterval(() => document.hidden || state.asksKey || look(), LOOK_EVERY_MS);
route(location.hash);
look();
