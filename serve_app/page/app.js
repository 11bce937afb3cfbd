// The page: a text, its labels, and why each was given.
//
// What is shown follows from `text.value`, `result` (labels of a text) and `why` (an explanation of a label of a text);
// both keep the text they are of, so that an edit makes them old, and taking it back makes them new again.
// A request that is followed by a newer one of its kind is called off; its answer is never shown.

import { finder } from "./finder.js";
import { breakable, counted, make, percent } from "./parts.js";
import { ask, key, Refusal, turns } from "./server.js";

const element = Object.fromEntries([...document.querySelectorAll("[id]")].map((one) => [one.id, one]));
const { text, status, labels, notice } = element;

const FAINT = 0.04; // Shades below this are left out.
const MOST_WORDS = 8;
const SAID_WORDS = 3;
const FOUND = 8;
const TOP_K = [3, 5, 10, 20, 50, 100];

let model = null;
let result = null; // {text, answer, roundTrip}
let why = null; // {text, label, lit: null or [tree, step]}
let again = null; // The work that was refused, to be tried again.
let waiting = 0;

const turn = { model: turns(), tag: turns(), explain: turns(), search: turns() };

// Asking, and being refused

/**
 * Does some work that asks the server; what goes wrong is said, and can be tried again.
 * Work that nobody asked for (`quiet`) takes no refusal back but its own.
 */
async function attempt(work, quiet = false) {
  waiting += 1;
  element.sheet.setAttribute("aria-busy", "true");
  try {
    await work();
    if (!quiet || again === work) say(null);
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!(error instanceof Refusal)) throw error;
    say(error, work);
  } finally {
    waiting -= 1;
    element.sheet.setAttribute("aria-busy", String(waiting > 0));
  }
}

function say(error, retry = null) {
  const locked = error?.status === 401;
  let said = error?.message ?? "";
  if (locked) said = key.get() ? "The server doesn’t know this key." : "This server asks for a key.";
  said = said.replace(/[^.!?]$/, "$&.");
  if (error?.waitS != null) said += ` Try again in ${counted(error.waitS, "second")}.`;
  again = retry;
  element["notice-text"].textContent = said;
  notice.hidden = !error;
  element.again.hidden = locked || !retry;
  element["key-form"].hidden = !locked;
  if (locked) element.key.focus();
}

// The model and the examples

async function loadModel() {
  const signal = turn.model();
  const [described, examples] = await Promise.all([ask("v1/model", signal), ask("v1/examples", signal)]);
  model = described;
  const facts = [counted(model.labels, "label"), counted(model.trees, "tree"), `${counted(model.words, "word")} known`];
  element.model.replaceChildren(make("b", "", model.name), ` — ${facts.join(", ")}`);
  const choices = TOP_K.filter((count) => count <= model.top_labels);
  if (!choices.length) choices.push(model.top_labels);
  const wanted = element["top-k"].value;
  element["top-k"].replaceChildren(...choices.map((count) => new Option(count)));
  element["top-k"].value = choices.includes(Number(wanted)) ? wanted : choices.at(-1);
  const options = examples.map((example) => new Option(example.replace(/\s+/g, " ").slice(0, 80), example));
  element.examples.replaceChildren(new Option("Try an example…", ""), ...options);
  element["examples-choice"].hidden = !examples.length;
}

// Tagging

/** The text as it is sent: half a surrogate pair is no character, and the server counts characters. */
function written() {
  return text.value.toWellFormed?.() ?? text.value;
}

function given() {
  if (text.value.trim()) return true;
  say(new Refusal("Write or paste a text first."));
  text.focus();
  return false;
}

async function tag() {
  const [asked, signal] = [written(), turn.tag()];
  turn.explain();
  const began = performance.now();
  const answer = await ask("v1/tag", signal, { text: asked, top_k: Number(element["top-k"].value) });
  result = { text: asked, answer, roundTrip: performance.now() - began };
  why = null;
  showLabels();
  show();
  if (answer.edition !== model?.edition) attempt(loadModel, true);
}

/** Explain a label of the list as it was ranked, at its place; another one is scored by all members. */
async function explain(label) {
  const [asked, signal] = [written(), turn.explain()];
  const listed = result?.text === asked ? result.answer.results[0].labels : [];
  const place = listed.findIndex((one) => one.label === label);
  const which = place < 0 ? { labels: [label] } : { top_k: place + 1 };
  const answer = await ask("v1/tag", signal, { text: asked, ...which, explain: true });
  const found = answer.results[0].labels.find((one) => one.label === label);
  if (!found) throw new Refusal("The label is not at its place any more. Tag the text again.");
  why = { text: asked, label: found, lit: null };
  showWhy();
  show();
}

/** Everything that depends on whether the text is still the one that was tagged. */
function show() {
  const now = written();
  const old = result !== null && result.text !== now;
  labels.classList.toggle("old", old);
  labels.setAttribute("aria-disabled", String(old));
  element.why.classList.toggle("old", why !== null && why.text !== now);
  const chosen = why?.label.label;
  for (const option of labels.children) {
    option.setAttribute("aria-selected", String(option.dataset.label === chosen && !old));
  }
  status.textContent = old ? "The text has changed since. Tag it again for its labels." : summary();
  light(now);
}

function summary() {
  if (!result) return "";
  const { answer, roundTrip } = result;
  const [{ words, labels: some }] = answer.results;
  const first = model && words === model.max_tokens;
  const parts = [
    counted(some.length, "label"),
    first ? `the first ${counted(words, "word")} were read` : `${counted(words, "word")} read`,
    `${answer.milliseconds.toFixed(0)} ms on the server, ${roundTrip.toFixed(0)} ms round trip`,
  ];
  if (answer.members_used < answer.members) parts.push(`${answer.members_used} of ${counted(answer.members, "member")} answered`);
  return parts.join(" · ");
}

function showLabels() {
  const some = result.answer.results[0].labels;
  const options = some.map((one, place) => {
    const bar = make("span", "bar");
    bar.style.setProperty("--share", one.probability);
    const named = [make("span", "name", breakable(one.name))];
    if (one.label !== one.name) named.push(make("span", "id", breakable(one.label)));
    const option = make("li", "", [
      make("span", "named", named, { dir: "auto" }),
      make("span", "score", `score ${one.score.toFixed(2)}`),
      make("span", "percent", percent(one.probability)),
      bar,
    ], { role: "option", tabindex: place ? -1 : 0, "aria-selected": "false" });
    option.dataset.label = one.label;
    return option;
  });
  labels.replaceChildren(...options);
  labels.hidden = !options.length;
  element["labels-empty"].hidden = options.length > 0;
  element["labels-empty"].textContent = result.answer.results[0].words ? "No label was found." : "The text has no words.";
  element["why-empty"].hidden = false;
  element["why-content"].hidden = true;
}

function choose(option) {
  if (!option || labels.getAttribute("aria-disabled") === "true") return;
  move(option);
  attempt(() => explain(option.dataset.label));
}

function move(option) {
  if (!option) return;
  for (const one of labels.children) one.tabIndex = one === option ? 0 : -1;
  option.focus();
}

// Why

function showWhy() {
  const { label } = why;
  const { paths, contributions } = label.explanation;
  element["why-title"].replaceChildren(...breakable(label.name));
  element["why-figures"].textContent = `${percent(label.probability)} · score ${label.score.toFixed(2)}`;
  element.contributions.replaceChildren(...contributions.map(({ member, score, share, points }) => {
    const bar = make("meter", "", [], { min: 0, max: 1, value: points, "aria-hidden": "true" });
    return make("li", "", [make("b", "", member), bar, make("small", "", `${percent(points)} = ${share.toFixed(2)} × ${percent(score)}`)]);
  }));
  element.mean.hidden = !paths.length;
  element.mean.textContent = paths.length > 1 ? `Attention of the label, mean of ${counted(paths.length, "tree")}` : "Attention of the label";
  element.trees.replaceChildren(...paths.map(({ member, path }, tree) => {
    const nodes = path.map((node, step) => {
      const button = make("button", "", [
        make("span", "level", `Level ${node.level}`),
        make("span", "percent", percent(node.probability)),
        make("span", "name", breakable(node.name), { dir: "auto" }),
      ], { type: "button", "aria-pressed": "false" });
      button.addEventListener("click", () => lightNode(tree, step));
      return make("li", "", button);
    });
    return make("section", "", [make("h3", "", member), make("ol", "", nodes)]);
  }));
  element["why-empty"].hidden = true;
  element["why-content"].hidden = false;
  showWords();
}

/** The attention that is shown: the label's, or that of the chosen node. */
function shownWeights() {
  const { words, paths } = why.label.explanation;
  return why.lit ? paths[why.lit[0]].path[why.lit[1]].weights : words.map((word) => word.weight);
}

function lightNode(tree, step) {
  const same = why.lit?.[0] === tree && why.lit?.[1] === step;
  why.lit = same ? null : [tree, step];
  showWords();
  show();
}

/** Draw the mirror of the text: the words that the label, or the chosen node, attended to are lit. */
function light(now) {
  let pieces = [now];
  let best = null;
  if (why?.text === now) {
    const { words } = why.label.explanation;
    const weights = shownWeights();
    const most = Math.max(...weights, Number.MIN_VALUE);
    const points = Array.from(now); // `start` and `end` count code points
    const piece = (start, end) => points.slice(start, end).join("");
    let done = 0;
    pieces = [];
    for (const [place, { start, end }] of words.entries()) {
      const shade = weights[place] / most;
      if (shade < FAINT) continue;
      const mark = make("mark", "", piece(start, end));
      mark.style.setProperty("--shade", shade.toFixed(3));
      if (shade === 1) best ??= mark;
      pieces.push(piece(done, start), mark);
      done = end;
    }
    pieces.push(piece(done));
  }
  element.mirror.replaceChildren(...pieces, "\u200b"); // an empty line at the end has a height, too
  if (best) bringIntoView(best);
}

/** List the words that it is highest for, and mark what was chosen: also of a text that has changed since. */
function showWords() {
  const { words } = why.label.explanation;
  const weights = shownWeights();
  const most = Math.max(...weights, Number.MIN_VALUE);
  const order = [...weights.keys()].sort((one, other) => weights[other] - weights[one]);
  const strongest = order.slice(0, MOST_WORDS).filter((place) => weights[place] / most >= FAINT);
  element.words.replaceChildren(...strongest.map((place) => {
    const word = make("mark", "", words[place].word);
    word.style.setProperty("--shade", (weights[place] / most).toFixed(3));
    return make("li", "", [make("b", "", word, { dir: "auto" }), make("small", "", percent(weights[place]))]);
  }));
  const said = strongest.slice(0, SAID_WORDS).map((place) => words[place].word).join(", ");
  element["why-status"].textContent = said ? `${why.label.name}: most attention to ${said}` : why.label.name;
  element.mean.setAttribute("aria-pressed", String(!why.lit));
  for (const [tree, section] of [...element.trees.children].entries()) {
    for (const [step, button] of section.querySelectorAll("button").entries()) {
      button.setAttribute("aria-pressed", String(why.lit?.[0] === tree && why.lit?.[1] === step));
    }
  }
}

/** Scroll the sheet, not the page, until a word can be seen. */
function bringIntoView(mark) {
  const [frame, place] = [element.scroll.getBoundingClientRect(), mark.getBoundingClientRect()];
  if (place.top >= frame.top && place.bottom <= frame.bottom) return;
  element.scroll.scrollTop += place.top - frame.top - frame.height / 3;
}

// Hands

element.shortcut.textContent = /Mac|iP(hone|ad|od)/.test(navigator.platform) ? "⌘ ↵" : "Ctrl ↵";

text.addEventListener("input", show);
text.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  element.tag.click();
});
element.tag.addEventListener("click", () => given() && attempt(tag));
element["top-k"].addEventListener("change", () => result?.text === written() && attempt(tag));
element.examples.addEventListener("change", () => {
  if (!element.examples.value) return;
  text.value = element.examples.value;
  element.examples.value = "";
  show();
  attempt(tag);
});

labels.addEventListener("click", (event) => choose(event.target.closest("[role=option]")));
labels.addEventListener("keydown", (event) => {
  const options = [...labels.children];
  const place = options.indexOf(document.activeElement);
  const to = { ArrowDown: place + 1, ArrowUp: place - 1, Home: 0, End: options.length - 1 }[event.key];
  if (to !== undefined) move(options[to]);
  else if (event.key === "Enter" || event.key === " ") choose(options[place]);
  else return;
  event.preventDefault();
});
element.mean.addEventListener("click", () => {
  why.lit = null;
  showWords();
  show();
});

finder({
  field: element.search,
  list: element.found,
  said: element["found-status"],
  ask: (query) => ask(`v1/labels?${new URLSearchParams({ query, limit: FOUND })}`, turn.search()),
  attempt: (work) => attempt(work, true),
  stop: turn.search,
  pick: (label) => given() && attempt(() => explain(label)),
});

element.again.addEventListener("click", () => attempt(again));
element["key-form"].addEventListener("submit", async (event) => {
  event.preventDefault();
  const retry = again;
  key.set(element.key.value.trim());
  element.key.value = "";
  if (!model) await attempt(loadModel);
  if (model && retry !== loadModel) await attempt(retry);
});

show();
attempt(loadModel, true);
