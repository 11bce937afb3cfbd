// What the page is made of: elements, numbers, and names.

const numbers = new Intl.NumberFormat("en");

/** 0.5 is "50 %"; nothing but 0 and 1 is shown as all or nothing. */
export function percent(share) {
  if (share > 0 && share < 0.001) return "<0.1 %";
  if (share > 0.999 && share < 1) return ">99.9 %";
  const near = (share > 0 && share < 0.0995) || (share >= 0.995 && share < 1);
  return `${(100 * share).toFixed(near ? 1 : 0)} %`;
}

/** "1 tree", "3 trees" */
export function counted(count, noun) {
  return `${numbers.format(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** An element with a class, attributes, and children or a text; names and texts are never read as markup. */
export function make(tag, className, content = [], attributes = {}) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...[content].flat());
  return made;
}

/** A name with places where a line may end: after dots and the like, before anywhere else. */
export function breakable(name) {
  return name.split(/(?<=[./:,-])/).flatMap((part) => [part, document.createElement("wbr")]);
}
