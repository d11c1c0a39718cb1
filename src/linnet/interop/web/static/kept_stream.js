// A stream as a file, and back: what `linnet generate --save-state` and `--load-state` write and read.

import { read, written } from "./state_file.js";

// tokens: all of the stream, those included that are yet to be read; spoken: where the speaker of its text stands;
// identity: of model and tokenizer.
export function saved(stream, tokens, spoken, identity) {
  const tensors = { ...stream.states };
  tensors.positions = { data: BigInt64Array.of(BigInt(stream.position)), dims: [1] };
  tensors.capacity = { data: BigInt64Array.of(BigInt(stream.capacity)), dims: [] };
  const { topK, threshold, minimum } = stream.policy;
  const policy = { kind: "eviction", top_k: topK, threshold, min_tokens_to_keep: minimum };
  const contexts = stream.description.cache_policies.map(kept => (kept.kind === "eviction" ? policy : kept));
  const text = { ...spoken, held: spoken.held.map(byte => byte.toString(16).padStart(2, "0")).join("") };
  const standing = { ...identity, pending: tokens.slice(stream.position), text, seed: null, drawn: 0 };
  return written(tensors, {
    contexts: JSON.stringify(contexts), stream: JSON.stringify(standing), tokens: JSON.stringify(tokens),
  });
}

// Lets the stream go on where the file's stood; gives its tokens (null: not in the file), those that are yet to be read
// at the end, where a speaker of its text stands, and the policy if there was one.
export function loaded(buffer, stream, identity) {
  const { tensors, notes } = read(buffer);
  const { positions, capacity } = tensors;
  if (positions?.data.length !== 1 || capacity?.data.length !== 1) throw new Error("not the state of one stream");
  const standing = notes.stream ? JSON.parse(notes.stream) : null;
  if (!standing) throw new Error("a decode state alone, without its stream");
  for (const field of ["model", "tokenizer"])
    if (standing[field] !== identity[field]) throw new Error(`a stream of another ${field}`);
  const position = Number(positions.data[0]), places = Number(capacity.data[0]);
  if (!(position >= 0 && position <= places && places > 0))
    throw new Error(`position ${position}: expected 0 to the capacity, which is ${places}`);
  for (const layer of stream.held) ofAllTokens(tensors, layer, position);
  stream.adopt(tensors, position, places);
  const policy = JSON.parse(notes.contexts ?? "[]").find(kept => kept.kind === "eviction");
  return {
    tokens: notes.tokens ? JSON.parse(notes.tokens) : [...Array(position).fill(null), ...standing.pending],
    spoken: { ...standing.text, held: (standing.text.held.match(/../g) ?? []).map(byte => parseInt(byte, 16)) },
    policy: policy && { topK: policy.top_k, threshold: policy.threshold, minimum: policy.min_tokens_to_keep },
  };
}

// A TED layer that kept everything has its tokens by place; the same as rows with ages, for a policy to choose from.
function ofAllTokens(tensors, { prefix, heads, width }, position) {
  const [values, rates, keys] = ["values", "rates", "keys"].map(field => tensors[`${prefix}${field}`]);
  if (!values || !rates) return;
  const channels = values.dims[2], ofKeys = keys ? keys.dims[2] * keys.dims[3] : 0;
  const entries = new Float32Array(position * width);
  for (let token = 0; token < position; token++) {
    const row = entries.subarray(token * width, (token + 1) * width);
    const value = values.data.subarray(token * channels, (token + 1) * channels);
    row.set(value);
    if (keys) row.set(keys.data.subarray(token * ofKeys, (token + 1) * ofKeys), channels);
    for (let head = 0; head < heads; head++) {
      const share = channels / heads;
      row[width - 2 * heads + head] = -rates.data[token * heads + head];
      row[width - heads + head] = Math.hypot(...value.subarray(head * share, (head + 1) * share));
    }
  }
  const count = BigInt(position);
  tensors[`${prefix}entries`] = { data: entries, dims: [1, position, width] };
  tensors[`${prefix}ages`] = { data: BigInt64Array.from(Array.from({ length: position }, (_, n) => count - 1n - BigInt(n))), dims: [1, position] };
  tensors[`${prefix}total`] = { data: BigInt64Array.of((count * (count + 1n)) / 2n), dims: [1] };
  tensors[`${prefix}largest`] = { data: BigInt64Array.of(count), dims: [1] };
}
