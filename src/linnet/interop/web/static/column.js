// One model on the page: text, context over time, figures, and saving and loading of its state.

import { Chart } from "./chart.js";
import { TextRandom } from "./random.js";
import { loadStream, saveStream } from "./stream_file.js";
import { choose } from "./sampling.js";
import { StopTexts } from "./stop_texts.js";
import { Stream } from "./stream.js";
import { TextView } from "./text_view.js";
import { Tokenizer } from "./tokenizer.js";

const EVERYTHING = "all tokens";

export class Column {
  #tokens = [];
  #counts;
  #decoder;
  #random = new TextRandom();
  #stopTexts = new StopTexts();
  #spent = { tokens: 0, ms: 0 };
  left = 0;
  #parts;

  constructor(template, entry, { runtime, description, definition, sessions }) {
    this.name = entry.name;
    this.element = template.cloneNode(true);
    this.#parts = name => this.element.querySelector(`.${name}`);
    this.identity = { model: entry.fingerprint, tokenizer: description.tokenizer.hash };
    this.tokenizer = new Tokenizer(definition, description.tokenizer.end_id);
    this.vocabulary = description.tokenizer.vocab_size;
    this.endIds = description.tokenizer.end_ids ?? [this.tokenizer.endId];
    this.stream = new Stream(runtime, sessions, description);
    const places = description.states.filter(state => state.grows === "places").map(state => state.input.split(".")[1]);
    this.fullLayers = new Set(places).size;
    const names = [...this.stream.held.map(({ layer }) => `layer ${layer}`), ...(this.fullLayers ? [EVERYTHING] : [])];
    this.view = new TextView(this.#parts("text"), this.stream.held, this.fullLayers > 0);
    this.chart = new Chart(this.#parts("context"), names);
    this.#parts("name").textContent = entry.name;
    this.#parts("about").textContent = about(entry, description);
    this.#parts("chart").hidden = names.length === 0;
    this.#parts("keeps").textContent = this.#keeps();
  }

  #keeps() {
    const { length } = this.stream.held;
    if (length) return `tokens in the context of ${length} layer${length > 1 ? "s" : ""}, from the first (blue) to the last (pink)`;
    if (this.fullLayers) return "tokens in the context: every layer keeps all of them";
    return "its layers keep a state of constant size and no individual tokens";
  }

  get busy() {
    return this.left > 0;
  }

  // Starts a new text with `count` tokens after the prompt, fewer if one of the texts `stop` comes.
  start(prompt, { count, seed, stop }) {
    this.stream.restart();
    this.#show([this.tokenizer.endId, ...this.tokenizer.encode(prompt)]);
    this.#random = new TextRandom(seed);
    this.#begin(count, stop);
  }

  // Generates more tokens of the same text, whose random numbers continue; the seed is for a text that has none.
  extend(settings) {
    if (!this.#tokens.length) return this.start("", settings);
    if (this.#random.seed === null) this.#random = new TextRandom(settings.seed, 0, this.#random.runs);
    this.#begin(settings.count, settings.stop);
  }

  #begin(count, stop) {
    this.left = count;
    this.#stopTexts = new StopTexts(stop);
    this.#spent = { tokens: 0, ms: 0 };
    this.say("");
  }

  // Asks for the end of the writing, which may be in the middle of a step.
  stop() {
    this.left = 0;
  }

  // Ends the writing; shows what was held back.
  finish() {
    this.left = 0;
    this.#showCertain(this.#stopTexts.finish());
  }

  #show(tokens, decoded, counts) {
    this.view.clear();
    this.chart.begin(this.stream.position);
    this.#tokens = [];
    this.#counts = counts ?? { seen: new Set(), generated: new Map() };
    this.#spent = { tokens: 0, ms: 0 };
    this.say("");
    this.#decoder = this.tokenizer.decoder();
    tokens.forEach(token => this.#add(token, true));
    if (tokens.includes(null)) this.#decoder = this.tokenizer.decoder(decoded);
  }

  #add(token, given = false) {
    this.#tokens.push(token);
    if (token !== null) this.#counts.seen.add(token);
    if (!given) this.#counts.generated.set(token, (this.#counts.generated.get(token) ?? 0) + 1);
    const text = token !== null ? this.#decoder.push(token) : this.#tokens.length === 1 ? "[…] " : "";
    this.view.add(given ? text : "", token, given);
    if (!given) this.#showCertain(this.#stopTexts.push(this.#tokens.length - 1, text));
  }

  #showCertain(texts) {
    for (const [place, text] of texts) this.view.show(place, text);
  }

  // Reads a token or a piece of a prompt, and chooses the next token after the last known one.
  async advance(policy, sampling) {
    this.stream.policy = policy;
    const place = this.stream.position, began = performance.now();
    const count = this.stream.piece(this.#tokens.length - place);
    const { logits, lives } = await this.stream.read(this.#tokens.slice(place, place + count));
    this.#spent.ms += performance.now() - began;
    this.#spent.tokens += count;
    for (let read = place; read < this.stream.position; read++) {
      this.view.read(read, lives);
      this.chart.add([...this.stream.ages.map(ages => ages.length), ...(this.fullLayers ? [read + 1] : [])]);
    }
    if (this.stream.position < this.#tokens.length) return;
    this.#generate(logits.subarray(0, this.vocabulary), sampling);
  }

  #generate(logits, sampling) {
    const isGreedy = sampling.temperature === 0;
    const next = choose(logits, sampling, isGreedy ? 1 : this.#random.uniform, this.#counts);
    this.#random.count(this.#tokens.length, isGreedy);
    this.#add(next);
    this.left = this.endIds.includes(next) || this.#stopTexts.hasStopped ? 0 : this.left - 1;
    if (!this.busy) this.finish();
  }

  draw(threshold) {
    this.view.mark(this.stream.ages, this.stream.position);
    this.view.draw(threshold);
    this.chart.draw();
    const { tokens, ms } = this.#spent;
    const speed = ms ? `${Math.round((1000 * tokens) / ms).toLocaleString("en")} tokens/s` : "– tokens/s";
    const count = this.#tokens.length.toLocaleString("en");
    const seed = this.#random.drawn ? ` · seed\u00a0${this.#random.seed}` : "";
    this.#parts("figures").textContent = `${count} tokens · ${speed} · state ${formatBytes(this.stream.bytes)}${seed}`;
  }

  say(problem) {
    this.#parts("problem").textContent = problem;
  }

  // Returns the bytes of a file with the stream.
  save() {
    if (!this.#tokens.length) throw new Error("there is no text yet");
    return saveStream(this.stream, this.#tokens, this.#counts, this.#random, this.#decoder.state, this.identity);
  }

  // Restores the stream of a file; returns its eviction policy, if any.
  load(buffer) {
    const { tokens, counts, random, decoded, policy } = loadStream(buffer, this.stream, this.identity);
    this.#show(tokens, decoded, counts);
    this.#random = random;
    const { lives } = this.stream;
    for (let place = 0; place < this.stream.position; place++)
      this.view.read(place, lives.map(ofLayer => ofLayer.get(place) ?? null));
    return policy;
  }
}

export function formatBytes(bytes) {
  if (bytes < 1e5) return `${(bytes / 1e3).toFixed(1)} kB`;
  return bytes < 1e9 ? `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB` : `${(bytes / 1e9).toFixed(1)} GB`;
}

function about({ parameters, bytes }, { weights, model }) {
  const kinds = [...new Set(model.blocks.map(block => block.mixer.kind))].join(", ");
  const layers = model.blocks.reduce((sum, block) => sum + block.repeat, 0);
  const millions = parameters < 1e6 ? `${Math.round(parameters / 1e3)} k` : `${(parameters / 1e6).toFixed(1)} M`;
  return `${kinds} · ${layers} ${layers === 1 ? "layer" : "layers"} · ${millions} parameters · ${weights}, ${formatBytes(bytes)}`;
}
