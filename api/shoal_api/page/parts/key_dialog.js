// The dialog that asks for an API key.

import { html } from "../vendor/lit-html.js";

/** Draw the dialog, with a message if the last key was wrong. `onClose` is called with the key, or with null if the dialog is closed without a key. */
export function keyDialog(key, message, onClose) {
  queueMicrotask(() => {
    const dialog = document.querySelector("#key-dialog");
    if (dialog && !dialog.open) dialog.showModal();
  });
  const submit = (event) => {
    event.preventDefault();
    onClose(new FormData(event.target).get("key").trim());
  };
  return html`
    <dialog id="key-dialog" aria-labelledby="key-title" @cancel=${() => onClose(null)}>
      <form @submit=${submit}>
        <h2 id="key-title">An API key, please</h2>
        <p>This service answers only with a key. It is kept until this tab is closed, and sent to this service alone.</p>
        ${message ? html`<p class="wrong" role="alert">${message}</p>` : ""}
        <label class="field">
          <span>Key</span>
          <input name="key" type="password" .value=${key} autocomplete="off" spellcheck="false" required
            pattern="\\s*[!-~]+\\s*" title="letters, digits and signs of ASCII, as shoal key new printed them">
        </label>
        <div class="row">
          <button class="button" type="submit">Use it</button>
          <button class="button quiet" type="button" @click=${() => onClose(null)}>Not now</button>
        </div>
      </form>
    </dialog>
  `;
}
