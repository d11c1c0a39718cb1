// Sliders with a scale of values and their text, and fields.

import { readSeed } from "./random.js";
import { readStopTexts } from "./stop_texts.js";

const LARGEST_TOP_K = 10;  // as a power of two
const off = "off";

const SCALES = {
  temperature: { max: 40, start: 16, value: at => at / 20, words: value => (value ? value.toFixed(2) : "0 (greedy)") },
  likeliest: { max: 9, start: 0, value: at => (at ? 2 ** at : 0), words: value => (value ? `${value} likeliest` : off) },
  top_p: { max: 50, start: 50, value: at => at / 50, words: value => (value < 1 ? value.toFixed(2) : off) },
  min_p: { max: 50, start: 0, value: at => at / 50, words: value => (value ? value.toFixed(2) : off) },
  typical_p: { max: 49, start: 49, value: at => (at + 1) / 50, words: value => (value < 1 ? value.toFixed(2) : off) },
  repetition: { max: 20, start: 0, value: at => 1 + at / 20, words: value => (value > 1 ? value.toFixed(2) : off) },
  frequency: { max: 40, start: 20, value: at => (at - 20) / 10, words: value => (value ? value.toFixed(1) : off) },
  presence: { max: 40, start: 20, value: at => (at - 20) / 10, words: value => (value ? value.toFixed(1) : off) },
  top_k: { max: 2 * LARGEST_TOP_K + 1, start: 0, value: at => (at ? Math.round(2 ** ((at - 1) / 2)) : 0), words: value => (value ? `${value} tokens` : off) },
  threshold: { max: 29, start: 9, value: at => (at ? Number(`1e${Math.floor((at - 1) / 2) - 12}`) * (at % 2 ? 1 : 3) : -1), words: value => (value > 0 ? value.toExponential(0) : off) },
  minimum: { max: 64, start: 1, value: at => at, words: value => `${value} token${value === 1 ? "" : "s"}` },
};

export class Controls {
  #inputs = {};
  #exact = {};
  #textOf;

  constructor(page, changed) {
    this.#textOf = name => page.getElementById(name).value;
    for (const [name, scale] of Object.entries(SCALES)) {
      const input = page.getElementById(name);
      Object.assign(input, { min: 0, max: scale.max, step: 1, value: scale.start });
      this.#inputs[name] = input;
      input.addEventListener("input", () => {
        delete this.#exact[name];
        this.#say(name);
        changed();
      });
      this.#say(name);
    }
  }

  #value(name) {
    return this.#exact[name] ?? SCALES[name].value(Number(this.#inputs[name].value));
  }

  #say(name) {
    this.#inputs[name].nextElementSibling.textContent = SCALES[name].words(this.#value(name));
  }

  get sampling() {
    return {
      temperature: this.#value("temperature"), topK: this.#value("likeliest"), topP: this.#value("top_p"),
      minP: this.#value("min_p"), typicalP: this.#value("typical_p"), repetition: this.#value("repetition"),
      frequency: this.#value("frequency"), presence: this.#value("presence"), bias: readBias(this.#textOf("bias")),
    };
  }

  // The seed as a BigInt; null if the field is empty.
  get seed() {
    return readSeed(this.#textOf("seed"));
  }

  get stopTexts() {
    return readStopTexts(this.#textOf("stops"));
  }

  get policy() {
    return { topK: this.#value("top_k"), threshold: this.#value("threshold"), minimum: this.#value("minimum") };
  }

  // Sets a policy from a file: its numbers stay exact, the sliders show the nearest values.
  set policy({ topK, threshold, minimum }) {
    for (const [name, value] of Object.entries({ top_k: topK, threshold, minimum })) {
      const { max, value: at } = SCALES[name];
      const distance = place => Math.abs(at(place) - value);
      const places = Array.from({ length: max + 1 }, (_, place) => place);
      this.#inputs[name].value = places.reduce((best, place) => (distance(place) < distance(best) ? place : best), 0);
      this.#exact[name] = value;
      this.#say(name);
    }
  }
}

// Reads token ids with numbers, such as "13=-2.5, 7=1".
export function readBias(text) {
  const pairs = text.split(",").map(part => part.trim()).filter(Boolean).map(part => {
    const pair = /^(\d+)\s*=\s*([-+]?\d+(?:\.\d+)?)$/.exec(part);
    if (!pair || Math.abs(pair[2]) > 1e4) throw new Error(`logit bias ${part}: expected a token id and a number to 1e4, such as 13=-2.5`);
    return [Number(pair[1]), Number(pair[2])];
  });
  return [...new Map(pairs)];  // of a token that is named twice, the last one
}
