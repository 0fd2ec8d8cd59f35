// The theme, light or dark: the system's, until the button chooses another.

import { html } from "../vendor/lit-html.js";

const THEME = "shoal.theme";
const DARK = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  return (localStorage.getItem(THEME) ?? (DARK.matches ? "dark" : "light")) === "dark";
}

/** Apply the chosen theme, if there is one. */
export function setTheme() {
  const chosen = localStorage.getItem(THEME);
  if (chosen) document.documentElement.dataset.theme = chosen;
}

/** Draw the button that switches the theme and then calls `onChange`. */
export function themeButton(onChange) {
  const next = isDark() ? "light" : "dark";
  const change = () => {
    localStorage.setItem(THEME, next);
    setTheme();
    onChange();
  };
  return html`
    <button class="icon" @click=${change} aria-label=${`Switch to ${next} colours`} title=${`Switch to ${next} colours`}>
      <svg viewBox="0 0 20 20" width="18" height="18" aria-hidden="true">
        <circle cx="10" cy="10" r="7" fill="none" stroke="currentColor" stroke-width="1.6"></circle>
        <path d="M10 3a7 7 0 0 1 0 14z" fill="currentColor"></path>
      </svg>
    </button>
  `;
}
