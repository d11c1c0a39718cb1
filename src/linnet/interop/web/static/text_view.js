// The text, token by token, with a stripe for each layer whose color shows the token's lifetime.

import { colorOf, formatSteps } from "./colors.js";
import { lifetime } from "./memory.js";

const FORGOTTEN = "transparent", UNKNOWN = "var(--unknown)";

export class TextView {
  #box;
  #tokens = [];
  #changed = new Set();

  // held: layers that hold individual tokens; fullLayers: number of other layers that keep every token.
  constructor(box, held, fullLayers) {
    this.#box = box;
    this.held = held;
    this.fullLayers = fullLayers;
    box.style.setProperty("--stripes", held.length + (fullLayers ? 1 : 0));
  }

  clear() {
    this.#box.replaceChildren();
    this.#tokens = [];
    this.#changed.clear();
  }

  add(text, token, given) {
    const span = document.createElement("span");
    span.textContent = text;
    span.dataset.token = token ?? "";
    if (given) span.className = "given";
    this.#tokens.push({ span, lives: this.held.map(() => null), gone: this.held.map(() => false) });
    this.#changed.add(this.#tokens.length - 1);
  }

  // Sets the text of a token that was held back.
  show(place, text) {
    this.#tokens[place].span.textContent = text;
  }

  // lives: for each layer the numbers that determine the lifetime of the token at a position.
  read(place, lives) {
    this.#tokens[place].lives = lives;
    this.#changed.add(place);
  }

  // ages: for each layer the ages of its tokens; position: number of tokens read.
  mark(ages, position) {
    ages.forEach((ofLayer, layer) => {
      const holds = new Set(Array.from(ofLayer, age => position - 1 - Number(age)));
      for (let place = 0; place < position; place++) {
        const token = this.#tokens[place];
        if (token.gone[layer] || holds.has(place)) continue;
        token.gone[layer] = true;
        this.#changed.add(place);
      }
    });
  }

  recolor() {
    this.#tokens.forEach((_, place) => this.#changed.add(place));
  }

  draw(threshold) {
    const atEnd = this.#box.scrollHeight - this.#box.scrollTop - this.#box.clientHeight < 40;
    const fresh = document.createDocumentFragment();
    for (const place of [...this.#changed].sort((one, other) => one - other)) {
      const token = this.#tokens[place];
      this.#paint(token, threshold);
      if (!token.span.isConnected) fresh.append(token.span);
    }
    this.#box.append(fresh);
    this.#changed.clear();
    if (atEnd) this.#box.scrollTop = this.#box.scrollHeight;
  }

  #paint({ span, lives, gone }, threshold) {
    const steps = lives.map(life => life && (threshold > 0 ? lifetime(life, threshold) : Infinity));
    const colors = steps.map((life, layer) => (gone[layer] ? FORGOTTEN : life === null ? UNKNOWN : colorOf(life)));
    if (this.fullLayers) colors.push(colorOf(Infinity));
    const edge = n => `${((100 * n) / colors.length).toFixed(2)}%`;
    const stripes = colors.map((color, n) => `${color} ${edge(n)} ${edge(n + 1)}`);
    if (stripes.length) span.style.setProperty("--life", `linear-gradient(${stripes.join(", ")})`);
    span.title = steps.map((life, n) => `layer ${this.held[n].layer}: ${said(life, gone[n])}`).join("\n");
  }
}

const said = (life, gone) => (gone ? "forgotten" : life === null ? "not read yet" : formatSteps(life));
