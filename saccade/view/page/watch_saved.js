// The self-contained page of a run, with all data inside the file.

import { watch } from "./watch.js";

export function mount(element, history) {
  return watch(element, { live: false, run: async () => history, moment: async (step) => history.attention[step] });
}
