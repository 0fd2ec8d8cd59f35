// The frame of the page: which view is shown, what is known of the service, and the key.

import { html, render } from "./vendor/lit-html.js";
import { Api } from "./api.js";
import { banner, serviceOf, STARTING } from "./parts/service.js";
import { keyDialog } from "./parts/key_dialog.js";
import { setTheme, themeButton } from "./parts/theme.js";
import * as map from "./views/map.js";
import * as search from "./views/search.js";
import * as pool from "./views/pool.js";
import * as attempt from "./views/try.js";

/** The views by the names that the address has for them. */
const VIEWS = { search, try: attempt, map, pool };

/** Interval at which the page asks how the service is. */
const LOOK_EVERY_MS = 5000;

/** Longest time until it knows that, and longest that an answer is on its way beside the time that the service waits for it. */
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
const context = { api, state, render: () => schedule() };

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
  const name = Object.keys(VIEWS).find((key) => VIEWS[key] === view);
  for (const link of document.querySelectorAll("[data-view]")) {
    link.toggleAttribute("data-current", link.dataset.view === name);
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${view.title} · Shoal`;
  document.querySelector("#version").textContent = state.info ? `Shoal ${state.info.version}` : "Shoal";
  render(statusLine(), document.querySelector("#service"));
  render(banner(state.service, askKey), document.querySelector("#banner"));
  if (state.service !== STARTING) render(view.view(state), document.querySelector("#main")); // until then it takes no input
  render(state.asksKey ? keyDialog(api.key, state.service.message, useKey) : "", document.querySelector("#dialog"));
}

function statusLine() {
  const { status, label } = state.service;
  return html`
    <span class="status" data-status=${status} role="status">${label}</span>
    ${state.needsKey ? html`<button class="button quiet" @click=${askKey}>Key</button>` : ""}
    ${themeButton(schedule)}
  `;
}

/** Open the dialog for the key, unless it is open. */
function askKey() {
  state.needsKey = state.asksKey = true;
  schedule();
}

/** Take the key that was typed in, or null if the dialog was closed without one. */
function useKey(key) {
  state.asksKey = false;
  state.declinesKey = key === null; // until a button asks
  if (key !== null) {
    api.key = key;
    state.service = STARTING;
    look();
  }
  schedule();
}

/** Ask how the service is, unless that is being asked; once it is well again or serves other indexes, let the view ask again too. */
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

/** Show the view that a part of the address names: #search?query=storm. */
function route(hash) {
  const [name, query] = hash.slice(1).split("?");
  const next = VIEWS[name] ?? search;
  state.params = new URLSearchParams(query);
  if (next !== view) scrollTo(0, 0);
  view?.leave();
  view = next;
  if (state.service !== STARTING) enter();
  schedule();
}

/** Let the link to a view lead to what was asked there last. */
function keepAddress(hash) {
  const name = hash.slice(1).split("?")[0];
  if (name in VIEWS) document.querySelector(`nav [data-view="${name}"]`).href = hash;
}

/** Let the view ask anew: what the address asks if that has changed, or else what the view asked before. */
function enter() {
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
  route(new URL(event.newURL).hash); // the view that is left may have written its own into the address since
});
setInterval(() => document.hidden || state.asksKey || look(), LOOK_EVERY_MS);
setTheme();
route(location.hash);
look();
