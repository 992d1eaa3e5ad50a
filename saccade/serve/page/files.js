// A field in which an image or audio file is chosen or dropped, with a preview.

import { el, setVisible } from "./view/element.js";

const ACCEPTED_TYPES = { picture: "image/*", sound: "audio/*" };
const MEDIUM_NAMES = { picture: "Image", sound: "Audio" };

export class FileField {
  constructor(place) {
    this.place = place;
    this.reads = "text";
    this.input = place.querySelector("input");
    this.preview = place.querySelector("#preview");
    this.input.addEventListener("change", () => this.show());
    // Keeps the browser from opening a dropped file in place of this page.
    for (const kind of ["dragover", "drop"]) document.addEventListener(kind, (event) => event.preventDefault());
    for (const kind of ["dragover", "dragleave", "drop"]) {
      place.addEventListener(kind, () => place.classList.toggle("try-over", kind === "dragover"));
    }
    place.addEventListener("drop", ({ dataTransfer }) => {
      if (!dataTransfer.files.length) return;
      this.choose(dataTransfer.files[0]);
    });
  }

  get name() {
    return this.input.files[0]?.name ?? "";
  }

  choose(file) {
    const one = new DataTransfer();
    one.items.add(file);
    this.input.files = one.files;
    this.show();
  }

  // Sets the modality that the model reads; a file of another modality is discarded.
  setMedium(reads) {
    if (reads !== this.reads) this.input.value = "";
    this.reads = reads;
    setVisible(this.place, reads !== "text");
    this.input.accept = ACCEPTED_TYPES[reads] ?? "";
    this.place.querySelector("#file-name").textContent = MEDIUM_NAMES[reads] ?? "";
    this.show();
  }

  // Builds a form with the file; if none is chosen, focuses the field and returns null.
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
        : el("img", { alt: `Chosen image, ${file.name}`, ...source }));
    });
    reader.readAsDataURL(file);
  }
}
