// What all pages have in common at their top: the name of the product, its logo, and the theme button.

import { createButton, el, svg } from "./element.js";

const THEMES = { auto: "Theme: system default", light: "Theme: light", dark: "Theme: dark" };
const STORED = "saccade-theme";

// The theme that was chosen last in this browser; a sandboxed frame has no storage.
export function readTheme() {
  try {
    const stored = localStorage.getItem(STORED);
    return stored in THEMES ? stored : "auto";
  } catch {
    return "auto";
  }
}

// A button that goes round the themes; `set` shows a theme without calling onchange.
export function createThemeButton(onchange, theme = readTheme()) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const element = createButton("", () => choose(), { class: "theme" });
  const set = (next) => {
    theme = next;
    element.replaceChildren(drawThemeIcon(theme === "auto" ? (dark.matches ? "dark" : "light") : theme));
    element.setAttribute("aria-label", `${THEMES[theme]}. Change`);
    element.title = THEMES[theme];
  };
  const choose = () => {
    const names = Object.keys(THEMES);
    set(names[(names.indexOf(theme) + 1) % names.length]);
    try {
      localStorage.setItem(STORED, theme);
    } catch {
      // the choice lasts as long as the page
    }
    onchange(theme);
  };
  dark.addEventListener("change", () => set(theme));
  set(theme);
  return { element, set };
}

export function createBrand(...more) {
  return el("div", { class: "brand" }, drawLogo(), "saccade", ...more);
}

// Three fixations of an eye and the saccades between them.
export function drawLogo() {
  return svg("svg", { viewBox: "0 0 36 20", width: 36, height: 20, "aria-hidden": "true", class: "logo" },
    svg("path", { d: "M5,15 Q12,-4 19,10 T31,6" }),
    svg("circle", { cx: 5, cy: 15, r: 2 }), svg("circle", { cx: 19, cy: 10, r: 2.6 }), svg("circle", { cx: 31, cy: 6, r: 3.6 }));
}

function drawThemeIcon(theme) {
  const rays = Array.from({ length: 8 }, (_, i) => svg("path", { d: "M10,1.2 v2.4", transform: `rotate(${45 * i} 10 10)` }));
  const shapes = theme === "dark" ? [svg("path", { d: "M12.5,3 A7.5,7.5 0 1 0 17,12.5 A6.2,6.2 0 0 1 12.5,3 Z" })]
    : [svg("circle", { cx: 10, cy: 10, r: 3.6 }), ...rays];
  return svg("svg", { viewBox: "0 0 20 20", width: 20, height: 20, "aria-hidden": "true" }, ...shapes);
}
