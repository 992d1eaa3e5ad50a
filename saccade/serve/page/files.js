// Where a picture or a sound file is chosen or dropped, and shown before it is sent.

import { el, shown } from "./view/element.js";

const TYPES = { picture: "image/*", sound: "audio/*" };
const NAMES = { picture: "Picture", sound: "Sound" };

export class FileField {
  constructor(place) {
    this.place = place;
    this.reads = "text";
    this.input = place.querySelector("input");
    this.preview = place.querySelector("#preview");
    this.input.addEventListener("change", () => this.show());
    // Dropped anywhere, a file is never opened by the browser in the place of this page.
    for (const kind of ["dragover", "drop"]) document.addEventListener(kind, (event) => event.preventDefault());
    for (const kind of ["dragover", "dragleave", "drop"]) {
      place.addEventListener(kind, () => place.classList.toggle("try-over", kind === "dragover"));
    }
    place.addEventListener("drop", ({ dataTransfer }) => {
      if (!dataTransfer.files.length) return;
      const one = new DataTransfer();
      one.items.add(dataTransfer.files[0]);
      this.input.files = one.files;
      this.show();
    });
  }

  // What a model reads: a file that was chosen for another kind is forgotten.
  offer(reads) {
    if (reads !== this.reads) this.input.value = "";
    this.reads = reads;
    shown(this.place, reads !== "text");
    this.input.accept = TYPES[reads] ?? "";
    this.place.querySelector("#file-name").textContent = NAMES[reads] ?? "";
    this.show();
  }

  // A form with the file; none where none is chosen, which is then asked for.
  form(fields) {
    const [file] = this.input.files;
    if (!file) {
      this.input.focus();
      return null;
    }
    const form = new FormData();
    form.append("file", file);
    for (const [name, value] of Object.entries(fields)) form.append(name, typeof value === "string" ? value : JSON.stringify(value));
    return form;
  }

  show() {
    const [file] = this.input.files;
    this.preview.replaceChildren();
    if (!file) return;
    const reader = new FileReader();
    reader.addEventListener("load", () => {
      if (this.input.files[0] !== file) return;
      const source = { src: reader.result };
      this.preview.replaceChildren(this.reads === "sound"
        ? el("audio", { controls: true, "aria-label": file.name, ...source })
        : el("img", { alt: `The chosen picture, ${file.name}`, ...source }));
    });
    reader.readAsDataURL(file);
  }
}
