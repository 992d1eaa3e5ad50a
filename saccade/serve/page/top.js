// The top of the pages: the logo and the theme button, which applies to the whole page.

import { createThemeButton, drawLogo, readTheme } from "./view/brand.js";

export function addTop(place, onchange = () => {}) {
  const setTheme = (theme) => {
    document.documentElement.dataset.theme = theme;
    onchange(theme);
  };
  place.prepend(drawLogo());
  place.append(createThemeButton(setTheme).element);
  setTheme(readTheme());
}
