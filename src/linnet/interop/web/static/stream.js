// One stream of a model: a graph maps a token, or a piece of a prompt, and the states to logits and the next states.

import { KEEP_ALL, evict, tokenLayers, lifetimeFields } from "./memory.js";

const MIN_PLACES = 64;
const MIN_PIECE = 8;  // tokens: fewer are read one by one
const MAX_PIECE = 256;  // all of their logits are in memory
const ARRAYS = { float32: Float32Array, int64: BigInt64Array };

const size = dims => dims.reduce((product, one) => product * one, 1);

// Returns the initial tensor of a state, with room for `places` tokens if it has room.
function initialState(state, places) {
  const dims = state.shape.map(one => one ?? (state.grows === "places" ? places : 0));
  const number = state.dtype === "int64" ? value => BigInt(value) : Number;
  const start = state.start === "-inf" ? -Infinity : state.start;
  const data = new ARRAYS[state.dtype](size(dims));
  Array.isArray(start) ? data.set(start.map(number)) : data.fill(number(start));
  return { data, dims };
}

export class Stream {
  #sessions;
  #tensor;
  #places = MIN_PLACES;

  // runtime: onnxruntime-web; sessions: the graphs, `step` and, where there is one, `prompt`; description: linnet.json.
  constructor(runtime, sessions, description) {
    this.#sessions = sessions;
    this.#tensor = (dtype, { data, dims }) => new runtime.Tensor(dtype, data, dims);
    this.description = description;
    this.held = tokenLayers(description);
    this.policy = KEEP_ALL;
    this.restart();
  }

  restart() {
    this.#places = MIN_PLACES;
    this.states = Object.fromEntries(this.description.states.map(state => [state.input, initialState(state, this.#places)]));
    this.position = 0;
  }

  get capacity() {
    return this.#places;
  }

  get bytes() {
    return Object.values(this.states).reduce((sum, { data }) => sum + data.byteLength, 0);
  }

  // The ages of the tokens of each layer that holds individual tokens.
  get ages() {
    return this.held.map(({ prefix }) => this.states[`${prefix}ages`].data);
  }

  // For each such layer the numbers that determine the lifetimes of its tokens, by their positions in the stream.
  get lives() {
    return this.held.map(layer => {
      const entries = this.states[`${layer.prefix}entries`].data, ages = this.states[`${layer.prefix}ages`].data;
      return new Map(Array.from(ages, (age, row) => [this.position - 1 - Number(age), lifetimeFields(entries, row, layer)]));
    });
  }

  // Returns how many of the given number of tokens to read at once.
  piece(tokens) {
    const { prompt, longest } = this.description;
    const count = Math.min(tokens, prompt?.length ?? MAX_PIECE, (longest ?? Infinity) - this.position);
    if (!this.#sessions.prompt || count < (prompt.length ?? MIN_PIECE)) return 1;
    return prompt.length && this.position % prompt.length ? 1 : count;
  }

  // Reads a token or a piece of a prompt. Returns the logits after the last token, and for each layer that holds individual
  // tokens (whose graph reads one token) the numbers that determine its lifetime.
  async read(tokens) {
    const { description } = this, end = this.position + tokens.length;
    if (description.longest !== null && end > description.longest)
      throw new Error(`the model's learned positions end at ${description.longest}`);
    while (end > this.#places) this.#grow();
    const ids = BigInt64Array.from(tokens, BigInt);
    const feeds = {
      [description.tokens]: this.#tensor("int64", { data: ids, dims: [1, tokens.length] }),
      [description.position]: this.#tensor("int64", { data: BigInt64Array.of(BigInt(this.position)), dims: [1] }),
    };
    for (const state of description.states) feeds[state.input] = this.#tensor(state.dtype, this.states[state.input]);
    const before = this.states;
    const after = await this.#sessions[tokens.length > 1 ? "prompt" : "step"].run(feeds);
    const taken = ({ data, dims }) => ({ data, dims: [...dims] });
    this.states = Object.fromEntries(description.states.map(state => [state.input, taken(after[state.output])]));
    this.position = end;
    const lives = this.held.map(layer => {
      const entries = this.states[`${layer.prefix}entries`].data;
      return lifetimeFields(entries, entries.length / layer.width - 1, layer);
    });
    this.held.forEach(layer => this.#evict(layer, before));
    const { data, dims } = after[description.logits];
    return { logits: data.subarray(data.length - dims[2]), lives };
  }

  #evict(layer, before) {
    const name = field => `${layer.prefix}${field}`;
    const { entries, ages } = evict(this.states[name("entries")].data, this.states[name("ages")].data, layer, this.policy);
    const held = BigInt(ages.length);
    this.states[name("entries")] = { data: entries, dims: [1, ages.length, layer.width] };
    this.states[name("ages")] = { data: ages, dims: [1, ages.length] };
    const [total, largest] = ["total", "largest"].map(field => before[name(field)].data[0]);
    this.states[name("total")] = { data: BigInt64Array.of(total + held), dims: [1] };
    this.states[name("largest")] = { data: BigInt64Array.of(largest > held ? largest : held), dims: [1] };
  }

  // Doubles the room for tokens.
  #grow() {
    this.#places *= 2;
    for (const state of this.description.states) {
      if (state.grows !== "places") continue;
      const kept = this.states[state.input];
      const larger = initialState(state, this.#places);
      const axis = state.shape.indexOf(null);
      const row = size(kept.dims.slice(axis)), wider = size(larger.dims.slice(axis));
      for (let outer = 0; outer < size(kept.dims.slice(0, axis)); outer++)
        larger.data.set(kept.data.subarray(outer * row, (outer + 1) * row), outer * wider);
      this.states[state.input] = larger;
    }
  }

  // Restores the state of another stream of this model: tensors by name, checked against the description.
  adopt(tensors, position, capacity) {
    for (const state of this.description.states) {
      const found = tensors[state.input];
      if (!found) throw new Error(`tensor ${state.input} is missing`);
      const fits = found.dims.length === state.shape.length && state.shape.every(
        (one, axis) => found.dims[axis] === (one ?? (state.grows === "places" ? capacity : found.dims[axis])));
      if (!fits || !(found.data instanceof ARRAYS[state.dtype]))
        throw new Error(`tensor ${state.input}: shape [${found.dims}] is not that of this model's state`);
    }
    this.states = Object.fromEntries(this.description.states.map(({ input }) => [input, tensors[input]]));
    [this.position, this.#places] = [position, capacity];
  }
}
