// Reads and writes a stream in the format of `linnet generate --save-state` and `--load-state`.

import { TextRandom, readSeed } from "./random.js";
import { readTensors, writeTensors } from "./safetensors.js";

// tokens: all tokens of the stream, including those not read yet; counts: what penalties count (sampling.js); random: the text's random numbers;
// decoded: state of the token decoder; identity: hashes of model and tokenizer.
export function saveStream(stream, tokens, counts, random, decoded, identity) {
  const tensors = { ...stream.states };
  tensors.positions = { data: BigInt64Array.of(BigInt(stream.position)), dims: [1] };
  tensors.capacity = { data: BigInt64Array.of(BigInt(stream.capacity)), dims: [] };
  const { topK, threshold, minimum } = stream.policy;
  const policy = { kind: "eviction", top_k: topK, threshold, min_tokens_to_keep: minimum };
  const contexts = stream.description.cache_policies.map(kept => (kept.kind === "eviction" ? policy : kept));
  const text = { ...decoded, held: decoded.held.map(byte => byte.toString(16).padStart(2, "0")).join("") };
  const streamState = { ...identity, pending: tokens.slice(stream.position), text,
    seed: random.seed, drawn: random.drawn, runs: random.runs.map(runToList),
    seen: [...counts.seen], generated: Object.fromEntries(counts.generated) };
  return writeTensors(tensors, {
    contexts: JSON.stringify(contexts), stream: stringifyExactly(streamState), tokens: JSON.stringify(tokens),
  });
}

// Restores a stream from a file. Returns its tokens (null: not in the file), including those not read yet, what penalties
// count, its random numbers, the state of the token decoder, and the eviction policy if there was one.
export function loadStream(buffer, stream, identity) {
  const { tensors, notes } = readTensors(buffer);
  const { positions, capacity } = tensors;
  if (positions?.data.length !== 1 || capacity?.data.length !== 1) throw new Error("not the state of one stream");
  const streamState = notes.stream ? parseExactly(notes.stream) : null;
  if (!streamState) throw new Error("a decode state without its stream");
  for (const field of ["model", "tokenizer"])
    if (streamState[field] !== identity[field]) throw new Error(`a stream of another ${field}`);
  const position = Number(positions.data[0]), places = Number(capacity.data[0]);
  if (!(position >= 0 && position <= places && places > 0))
    throw new Error(`position ${position}: expected 0 to the capacity, which is ${places}`);
  const tokens = notes.tokens ? JSON.parse(notes.tokens) : [...Array(position).fill(null), ...streamState.pending];
  if (tokens.length !== position + streamState.pending.length)
    throw new Error(`${tokens.length} tokens, of which ${streamState.pending.length} are pending: the state has read ${position}`);
  if (streamState.inputs || streamState.prefixes || streamState.beginning > 1)
    throw new Error("a stream with an input, which the page would lose");
  const random = randomOf(streamState, tokens.length);
  const policy = JSON.parse(notes.contexts ?? "[]").find(kept => kept.kind === "eviction");
  const restored = {
    tokens,
    counts: {
      seen: new Set(streamState.seen),
      generated: new Map(Object.entries(streamState.generated ?? {}).map(([token, times]) => [Number(token), times])),
    },
    random,
    decoded: { ...streamState.text, held: (streamState.text.held.match(/../g) ?? []).map(byte => parseInt(byte, 16)) },
    policy: policy && { topK: policy.top_k, threshold: policy.threshold, minimum: policy.min_tokens_to_keep },
  };
  for (const layer of stream.held) convertFullCache(tensors, layer, position);
  stream.adopt(tensors, position, places);  // last: a file with an error leaves the stream as it was
  return restored;
}

const runToList = ({ start, end, seed, drawn, isGreedy }) => [start, end, seed, drawn, isGreedy];

// The random numbers of a saved stream; without runs the last tokens are those that were generated.
function randomOf({ seed, drawn, generated = {}, runs }, tokens) {
  const count = Object.values(generated).reduce((sum, times) => sum + times, 0);
  const lists = runs ?? [[tokens - count, tokens, seed, drawn, true]];
  return new TextRandom(readSeed(`${seed ?? ""}`), drawn, lists.map(([start, end, ofRun, before, isGreedy]) =>
    ({ start, end, seed: ofRun === null ? null : BigInt(ofRun), drawn: before, isGreedy })));
}

// JSON in which BigInts are whole numbers: a seed has up to 63 bits. The strings of a stream are hashes and names.
function stringifyExactly(value) {
  const text = JSON.stringify(value, (_, one) => (typeof one === "bigint" ? `#${one}` : one));
  return text.replace(/"#(\d+)"/g, "$1");
}

function parseExactly(text) {
  const quoted = text.replace(/([[,:]\s*)(\d{16,})/g, '$1"#$2"');
  return JSON.parse(quoted, (_, one) => (typeof one === "string" && /^#\d+$/.test(one) ? BigInt(one.slice(1)) : one));
}

// Converts the full cache of a TED layer, indexed by position, to rows with ages, from which a policy can evict.
function convertFullCache(tensors, { prefix, heads, width }, position) {
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
