// The page of a run that stands alone: everything is there.

import { watch } from "./watch.js";

export function mount(element, history) {
  return watch(element, { live: false, run: async () => history, moment: async (step) => history.attention[step] });
}
