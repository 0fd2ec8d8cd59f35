// Dead letters: jobs that could not be answered, which an operator looks at, tries again or drops.

import { html } from "../vendor/lit-html.js";
import { ago } from "./quantity.js";
import { section } from "./table.js";

/** Largest number of characters that are shown of a text. */
const MAX_SHOWN = 400;

/** The dead letters on the page, with the API's answers about the open ones; `render` draws the view again. */
export class DeadLetters {
  #api;
  #render;
  #open = new Map(); // null until the API has answered
  #busy = new Set(); // also letters whose action is done, until the pool no longer lists them
  #message = "";

  constructor(api, render) {
    this.#api = api;
    this.#render = render;
  }

  /** Draw the listed letters, out of `count`; `letters` is null if the key may not see them. */
  view(letters, count, now) {
    if (letters === null) return count ? section("Dead letters", "", html`<p class="hint">There are ${count}. The key of an admin shows them.</p>`) : "";
    return section("Dead letters", "", html`
      <p class="message" role="status">${this.#message}</p>
      ${letters.length ? html`<ol class="letters">${letters.map((letter) => this.#item(letter, now))}</ol>` : html`<p class="hint">None: every job could be answered.</p>`}
      ${count > letters.length ? html`<p class="hint">These are the newest of ${count}. <code>shoal dead</code> lists all.</p>` : ""}
    `);
  }

  #item(letter, now) {
    const { id, op, num_texts: numTexts, deliveries, worker } = letter;
    const [isOpen, isBusy] = [this.#open.has(id), this.#busy.has(id)];
    const about = [op ?? "unreadable", numTexts === null ? "" : `${numTexts} text${numTexts === 1 ? "" : "s"}`, letter.lane];
    about.push(`delivered ${deliveries === 1 ? "once" : `${deliveries} times`}${worker ? `, last to ${worker}` : ""}`, ago(letter.time, now));
    const retry = async () => `The job is tried again as ${(await this.#api.post(`v1/dead/${id}/retry`)).id}.`;
    const drop = async () => {
      await this.#api.delete(`v1/dead/${id}`);
      return "The dead letter was dropped.";
    };
    const isSure = () => confirm("Drop this dead letter? Its job and its texts are deleted.");
    return html`
      <li class="panel">
        <p class="reason">${letter.reason}</p>
        <p class="hint name">${about.filter(Boolean).join(" · ")}${letter.job_id ? html`<br><code>${letter.job_id}</code>` : ""}</p>
        <p class="row">
          <button class="button" ?disabled=${isBusy} @click=${() => this.#change(id, retry)}>Try again</button>
          <button class="button quiet" ?disabled=${isBusy} @click=${() => isSure() && this.#change(id, drop)}>Drop</button>
          <button class="button quiet" aria-expanded=${isOpen} @click=${() => this.#toggle(id)}>${isOpen ? "Hide" : "Show"} texts and traceback</button>
        </p>
        ${isOpen ? details(this.#open.get(id)) : ""}
      </li>
    `;
  }

  async #toggle(id) {
    if (this.#open.delete(id)) return this.#render();
    this.#open.set(id, null);
    this.#render();
    try {
      const found = await this.#api.get(`v1/dead/${id}`);
      if (this.#open.has(id)) this.#open.set(id, found);
    } catch (error) {
      this.#message = error.message;
      this.#open.delete(id);
    }
    this.#render();
  }

  async #change(id, work) {
    this.#busy.add(id);
    this.#render();
    try {
      this.#message = await work();
    } catch (error) {
      this.#message = error.message;
      this.#busy.delete(id);
    }
    this.#render();
  }
}

function details(found) {
  if (!found) return html`<p class="hint">Reading …</p>`;
  const { asked, traceback, bytes } = found;
  return html`
    ${asked ? html`<ol class="texts">${asked.texts.map((text) => html`<li>${shortened(text)}</li>`)}</ol>` : html`<p class="hint">The job cannot be read. Its first bytes:</p><pre>${bytes}</pre>`}
    ${traceback ? html`<pre tabindex="0" aria-label="Traceback">${traceback}</pre>` : ""}
  `;
}

function shortened(text) {
  const shown = typeof text === "string" ? text : JSON.stringify(text);
  return shown.length > MAX_SHOWN ? `${shown.slice(0, MAX_SHOWN)}…` : shown;
}
