// Helpers that create DOM elements. Children that are strings become text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";

export function el(tag, attributes = {}, ...children) {
  return fillElement(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fillElement(document.createElementNS(SVG, tag), attributes, children);
}

function fillElement(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Shows or hides an element, which stays in the document.
export function setVisible(element, visible) {
  element.hidden = !visible;
  return element;
}

export function createButton(text, onclick, attributes = {}) {
  return el("button", { type: "button", onclick, ...attributes }, text);
}

// Creates a labelled select; entries are [value, text].
export function createSelect(label, entries, chosen, onchoose) {
  const select = el("select", { onchange: () => onchoose(select.value) });
  const setOptions = (list, value) => {
    select.replaceChildren(...list.map(([key, text]) => el("option", { value: key }, text)));
    select.value = String(value);
  };
  setOptions(entries, chosen);
  return { element: el("label", { class: "field" }, el("span", {}, label), select), select, setOptions };
}

export function createCheckbox(label, checked, onchange) {
  const box = el("input", { type: "checkbox", onchange: () => onchange(box.checked) });
  box.checked = checked;
  return el("label", { class: "check" }, box, label);
}

// Roving tabindex: Tab reaches one of several buttons; arrow keys, Home and End move between them.
export function addRovingFocus(container, selector, signal) {
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  container.addEventListener("keydown", (event) => {
    const all = [...container.querySelectorAll(selector)];
    const here = all.indexOf(document.activeElement);
    if (here < 0) return;
    const next = { Home: 0, End: all.length - 1 }[event.key] ?? here + (steps[event.key] ?? NaN);
    if (Number.isNaN(next)) return;
    event.preventDefault();
    const target = all[Math.max(0, Math.min(all.length - 1, next))];
    for (const one of all) one.tabIndex = one === target ? 0 : -1;
    target.focus();
  }, { signal });
}
