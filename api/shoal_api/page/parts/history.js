// The entries of the browser's history: one for each question, with its hits and the place to which the page was scrolled.

/** Time after which a change by typing or sliding is settled, so that the next change gets an entry of its own. */
const SETTLED_MS = 2000;

/** Largest number of entries whose hits are kept. */
const MAX_KEPT = 30;

const kept = new Map();
let id = 0;
let last = { what: "", at: 0 };

history.scrollRestoration = "manual"; // browsers would scroll before the hits are back

/** Return the id of the shown entry. Ids are times, so no new entry gets an earlier id, even after a reload. */
function idOfEntry() {
  if (!history.state?.id) history.replaceState({ id: performance.timeOrigin + performance.now() }, "");
  return history.state.id;
}

/**
 * Write the question into the address: in a new entry, or, while a control is typed into or slid, in its last entry.
 * `moved` names the control that is being typed into or slid; an empty name settles the question.
 */
export function note(hash, moved) {
  const now = performance.now();
  const goesOn = moved && moved === last.what && now - last.at < SETTLED_MS;
  last = { what: moved, at: now };
  if (hash === (location.hash || "#search")) return;
  if (goesOn) {
    kept.delete(id); // they are the hits for earlier keystrokes
    return history.replaceState(history.state, "", hash);
  }
  keep({ scroll: scrollY });
  history.pushState(null, "", hash);
  id = idOfEntry();
}

/** Keep values with the shown entry. */
export function keep(values) {
  kept.set(id, { ...kept.get(id), ...values });
  if (kept.size > MAX_KEPT) kept.delete(kept.keys().next().value);
}

/** Make the entry of the address the shown one, and return the values kept with it. A new entry has none. */
export function turn() {
  keep({ scroll: scrollY });
  last = { what: "", at: 0 };
  id = idOfEntry();
  return kept.get(id) ?? {};
}
