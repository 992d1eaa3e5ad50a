// Elements of a page in one line each. Text is always text, never markup.

const SVG = "http://www.w3.org/2000/svg";

export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Shows or hides without losing the element's place.
export function shown(element, visible) {
  element.hidden = !visible;
  return element;
}

export function button(text, onclick, attributes = {}) {
  return el("button", { type: "button", onclick, ...attributes }, text);
}

// A labelled list to choose from: entries are [value, text].
export function choice(label, entries, chosen, onchoose) {
  const select = el("select", { onchange: () => onchoose(select.value) });
  const offer = (list, value) => {
    select.replaceChildren(...list.map(([key, text]) => el("option", { value: key }, text)));
    select.value = String(value);
  };
  offer(entries, chosen);
  return { element: el("label", { class: "field" }, el("span", {}, label), select), select, offer };
}

export function checkbox(label, checked, onchange) {
  const box = el("input", { type: "checkbox", onchange: () => onchange(box.checked) });
  box.checked = checked;
  return el("label", { class: "check" }, box, label);
}

// Arrow keys, Home and End walk along a row of buttons of which one can be reached by Tab.
export function roving(container, selector, signal) {
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
