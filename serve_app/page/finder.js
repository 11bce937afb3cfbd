// Labels by name: a field with a list below it. The focus stays in the field; the arrow keys walk through the list.

import { breakable, counted, make } from "./parts.js";

const PAUSE_MS = 120; // Of typing, before labels are searched.
const NOTHING = "No label has these words.";

/**
 * Makes a field search while it is typed in.
 *
 * ask: called with the words, fetches the labels.
 * attempt: called with the work of a search, always the same, does it and says what went wrong.
 * stop: called when the answer isn't wanted any more.
 * pick: called with the label that was chosen.
 */
export function finder({ field, list, said, ask, attempt, stop, pick }) {
  let pause = 0;
  let listed = null; // The words that the list answers.
  let active = -1;

  const options = () => [...list.querySelectorAll("[role=option]")];

  function open(wanted) {
    list.hidden = !wanted;
    field.setAttribute("aria-expanded", String(wanted));
    activate(-1);
  }

  function activate(place) {
    active = place;
    for (const [number, option] of options().entries()) option.setAttribute("aria-selected", String(number === place));
    const option = options()[place];
    option?.scrollIntoView({ block: "nearest" });
    if (option) field.setAttribute("aria-activedescendant", option.id);
    else field.removeAttribute("aria-activedescendant");
  }

  function show(hits) {
    const shown = hits.map((hit, place) => {
      const name = hit.name === hit.label ? hit.name : `${hit.name} (${hit.label})`;
      const parts = [make("span", "", breakable(name), { dir: "auto" }), make("small", "", counted(hit.documents, "text"))];
      const option = make("li", "", parts, { role: "option", id: `found-${place}`, "aria-selected": "false" });
      option.dataset.label = hit.label;
      return option;
    });
    list.replaceChildren(...(hits.length ? shown : [make("li", "nothing", NOTHING, { role: "presentation" })]));
    said.textContent = hits.length ? `${counted(hits.length, "label")} found` : NOTHING;
    open(true);
  }

  async function search() {
    const query = field.value;
    if (!query.trim()) return;
    const hits = await ask(query);
    listed = query;
    show(hits);
  }

  function close() {
    clearTimeout(pause);
    stop();
    open(false);
  }

  function choose(option) {
    if (!option) return;
    close();
    field.value = "";
    pick(option.dataset.label);
  }

  field.addEventListener("input", () => {
    clearTimeout(pause);
    if (field.value.trim()) pause = setTimeout(() => attempt(search), PAUSE_MS);
    else close();
  });
  field.addEventListener("keydown", (event) => {
    if (event.isComposing || event.keyCode === 229) return; // These keys are the input method's.
    const some = options();
    if (event.key === "Escape") close();
    else if (event.key === "Enter") choose(list.hidden || listed !== field.value ? null : some[Math.max(active, 0)]);
    else if (list.hidden || !some.length) return;
    else if (event.key === "ArrowDown") activate((active + 1) % some.length);
    else if (event.key === "ArrowUp") activate((active <= 0 ? some.length : active) - 1);
    else return;
    event.preventDefault();
  });
  field.addEventListener("blur", close);
  list.addEventListener("mousedown", (event) => event.preventDefault());
  list.addEventListener("click", (event) => choose(event.target.closest("[role=option]")));
}
