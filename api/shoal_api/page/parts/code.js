// A request as code to copy: curl, Python and the OpenAI client.

import { html } from "../vendor/lit-html.js";
import { copyText } from "./controls.js";

const NAMES = { curl: "curl", python: "Python", openai: "openai" };

let chosen = "curl";
let copied = "";

/** Return the address of the API for a program on this machine or another. */
function apiUrl() {
  return new URL(".", document.baseURI).href.replace(/\/$/, "");
}

/** Draw the samples, texts keyed by name, with a button that copies the shown sample; `render` draws the page again. */
export function codeSamples(samples, render) {
  const names = Object.keys(samples);
  if (!names.includes(chosen)) chosen = names[0];
  const choose = (name) => {
    chosen = name;
    render();
  };
  const copy = async () => {
    await copyText(samples[chosen]);
    copied = samples[chosen];
    render();
  };
  return html`
    <section class="code" aria-label="This request as code">
      <header>
        <div class="tabs">
          ${names.map((name) => html`
            <button aria-pressed=${name === chosen} @click=${() => choose(name)}>${NAMES[name]}</button>
          `)}
        </div>
        <button class="button quiet" @click=${copy}>${copied === samples[chosen] ? "Copied" : "Copy"}</button>
      </header>
      <pre tabindex="0"><code>${samples[chosen]}</code></pre>
    </section>
  `;
}

/** Return a command that posts the body. */
export function curlSample(path, body, hasKey) {
  const key = hasKey ? ` \\\n  -H "Authorization: Bearer $SHOAL_KEY"` : "";
  return `curl ${quoted(`${apiUrl()}/${path}`)}${key} \\\n  -d ${quoted(JSON.stringify(body))}`;
}

/** Return a program with Shoal's client that makes a `call`, such as `search("storm", k=3)`, and then runs the lines. */
export function pythonSample(call, lines, hasKey) {
  const key = hasKey ? `, os.environ["SHOAL_KEY"]` : "";
  return [
    ...(hasKey ? ["import os", ""] : []),
    "from shoal import HttpClient",
    "",
    `with HttpClient(${pythonOf(apiUrl())}${key}) as client:`,
    `    ${call}`,
    ...lines.map((line) => `    ${line}`),
  ].join("\n");
}

/** Return a program with OpenAI's client that embeds the input, a text or a list of texts. */
export function openaiSample(model, input, options, hasKey) {
  const key = hasKey ? `os.environ["SHOAL_KEY"]` : `"none"`;
  const given = Object.entries(options).map(([name, value]) => `, ${name}=${pythonOf(value)}`).join("");
  return [
    ...(hasKey ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${pythonOf(`${apiUrl()}/v1`)}, api_key=${key})`,
    `answer = client.embeddings.create(model=${pythonOf(model)}, input=${pythonOf(input)}${given})`,
    "vectors = [item.embedding for item in answer.data]",
  ].join("\n");
}

/** Return the arguments of a call in Python. */
export function pythonArguments(values) {
  return Object.entries(values).map(([name, value]) => `${name}=${pythonOf(value)}`).join(", ");
}

/** Return a value as Python code. */
export function pythonOf(value) {
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === null) return "None";
  if (Array.isArray(value)) return `[${value.map(pythonOf).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, item]) => `${pythonOf(name)}: ${pythonOf(item)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}

/** Return a text quoted, so that the shell reads one word. */
function quoted(text) {
  return /^[\w:/.@-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}
