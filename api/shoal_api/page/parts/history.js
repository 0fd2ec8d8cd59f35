// The entries of the browser's history: one for each thing that was asked, with what was found and how far it was scrolled.

/** Time after a change by typing or sliding after which it is settled: the next one is an entry of its own. */
const SETTLED_MS = 2000;

/** Most entries whose hits are kept. */
const MAX_KEPT = 30;

const kept = new Map();
let id = 0;
let last = { what: "", at: 0 };

history.scrollRestoration = "manual"; // browsers would scroll before the hits are back

/** Return the id of the entry that is shown now, which no entry had before a reload. */
function idOfEntry() {
  if (!history.state?.id) history.replaceState({ id: performance.timeOrigin + performance.now() }, "");
  return history.state.id;
}

/**
 * Note what is asked as part of the address: in an entry of its own, or in that of the keystrokes or moves before it.
 * `moved` names what is being typed or slid; an empty one settles the question.
 */
export function note(hash, moved) {
  const now = performance.now();
  const goesOn = moved && moved === last.what && now - last.at < SETTLED_MS;
  last = { what: moved, at: now };
  if (hash === (location.hash || "#search")) return;
  if (goesOn) {
    kept.delete(id); // what was found for the keystrokes before
    return history.replaceState(history.state, "", hash);
  }
  keep({ scroll: scrollY });
  history.pushState(null, "", hash);
  id = idOfEntry();
}

/** Keep something of the entry that is shown. */
export function keep(values) {
  kept.set(id, { ...kept.get(id), ...values });
  if (kept.size > MAX_KEPT) kept.delete(kept.keys().next().value);
}

/** Leave the entry that was shown for that of the address, and return what was kept of it: nothing of a new one. */
export function turn() {
  keep({ scroll: scrollY });
  last = { what: "", at: 0 };
  id = idOfEntry();
  return kept.get(id) ?? {};
}
