// Dead letters: jobs that could not be answered, which an operator looks at, tries again or drops.

import { html } from "../vendor/lit-html.js";
import { section } from "./pool_tables.js";
import { ago } from "./quantity.js";

/** Largest number of characters that are shown of a text. */
const MAX_SHOWN = 400;

/**
 * The dead letters on the page: the open letter, the API's answer about it, and the actions under way. `reload` draws
 * the view again.
 */
export class DeadLetters {
  #api;
  #render;
  #letter = null;
  #asked = null;
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
    const isOpen = this.#letter === letter.id;
    const isBusy = this.#busy.has(letter.id);
    const texts = letter.num_texts === null ? "" : ` · ${letter.num_texts} text${letter.num_texts === 1 ? "" : "s"}`;
    return html`
      <li class="panel">
        <p class="reason">${letter.reason}</p>
        <p class="hint">
          ${letter.op ?? "unreadable"}${texts} · ${letter.lane} · delivered ${letter.deliveries === 1 ? "once" : `${letter.deliveries} times`}${letter.worker ? html`, last to <span class="name">${letter.worker}</span>` : ""} · ${ago(letter.time, now)}
          ${letter.job_id ? html`<br><code class="name">${letter.job_id}</code>` : ""}
        </p>
        <p class="row">
          <button class="button" ?disabled=${isBusy} @click=${() => this.#retry(letter)}>Try again</button>
          <button class="button quiet" ?disabled=${isBusy} @click=${() => this.#drop(letter)}>Drop</button>
          <button class="button quiet" aria-expanded=${isOpen} @click=${() => this.#toggle(letter)}>${isOpen ? "Hide" : "Show"} texts and traceback</button>
        </p>
        ${isOpen ? this.#details() : ""}
      </li>
    `;
  }

  #details() {
    if (!this.#asked) return html`<p class="hint">Reading …</p>`;
    const { asked, traceback, bytes } = this.#asked;
    return html`
      ${asked ? html`<ol class="texts">${asked.texts.map((text) => html`<li>${shortened(text)}</li>`)}</ol>` : html`<p class="hint">The job cannot be read. Its first bytes:</p><pre>${bytes}</pre>`}
      ${traceback ? html`<pre tabindex="0" aria-label="Traceback">${traceback}</pre>` : ""}
    `;
  }

  async #toggle(letter) {
    this.#letter = this.#letter === letter.id ? null : letter.id;
    this.#asked = null;
    this.#render();
    if (!this.#letter) return;
    try {
      const asked = await this.#api.get(`v1/dead/${letter.id}`);
      if (this.#letter === letter.id) this.#asked = asked;
    } catch (error) {
      this.#message = error.message;
      if (this.#letter === letter.id) this.#letter = null;
    }
    this.#render();
  }

  async #retry(letter) {
    await this.#change(letter, async () => {
      const { id } = await this.#api.post(`v1/dead/${letter.id}/retry`);
      return `The job is tried again as ${id}.`;
    });
  }

  async #drop(letter) {
    if (!confirm("Drop this dead letter? Its job and its texts are deleted.")) return;
    await this.#change(letter, async () => {
      await this.#api.delete(`v1/dead/${letter.id}`);
      return "The dead letter was dropped.";
    });
  }

  async #change(letter, work) {
    if (this.#busy.has(letter.id)) return;
    this.#busy.add(letter.id);
    this.#render();
    try {
      this.#message = await work();
    } catch (error) {
      this.#message = error.message;
      this.#busy.delete(letter.id);
    }
    this.#render();
  }
}

function shortened(text) {
  const shown = typeof text === "string" ? text : JSON.stringify(text);
  return shown.length > MAX_SHOWN ? `${shown.slice(0, MAX_SHOWN)}…` : shown;
}
