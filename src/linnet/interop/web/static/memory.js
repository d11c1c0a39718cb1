// The tokens in the state of a TED layer, their eviction by a policy, and their lifetimes.
// A layer's tokens are rows of two tensors: `entries`, [1, E, D + keys + 2 heads], whose last numbers are, for each head,
// the negative rate and the norm of the token's contribution, and `ages`, [1, E], in steps.

export const KEEP_ALL = { topK: 0, threshold: -1, minimum: 0 };

// Returns the layers that hold individual tokens, from a model's description.
export function tokenLayers(description) {
  return description.states.filter(state => state.grows === "held" && state.input.endsWith(".entries")).map(state => {
    const layer = Number(/^layer\.(\d+)\./.exec(state.input)[1]);
    return { layer, prefix: `layer.${layer}.`, heads: headsOf(description, layer), width: state.shape[2] };
  });
}

function headsOf(description, layer) {
  let before = 0;
  for (const block of description.model.blocks) {
    before += block.repeat;
    if (layer < before) return block.mixer.heads ?? 1;
  }
  throw new Error(`layer ${layer} has no block`);
}

// For a row: the negative rate of each head, then the norm of each head.
const heads = (entries, row, { width, heads }) => entries.subarray((row + 1) * width - 2 * heads, (row + 1) * width);

// The norm of what remains of a token, in float32 as the model computes it.
export function relevance(fields, age) {
  const count = fields.length / 2;
  const left = n => Math.fround(fields[count + n] * Math.fround(Math.exp(Math.fround(fields[n] * age))));
  return count === 1 ? left(0) : Math.hypot(...Array.from({ length: count }, (_, n) => left(n)));
}

// Returns the rows that stay after a step, in order, like `survivors` of linnet.ops.decay.eviction.
export function survivors(relevances, { topK, threshold, minimum }) {
  const rows = Array.from(relevances.keys());
  const above = rows.filter(row => relevances[row] >= threshold);
  if (above.length >= Math.min(minimum, rows.length) && (topK === 0 || above.length <= topK)) return above;
  const ranked = rows.sort((one, other) => relevances[other] - relevances[one] || one - other);
  const stays = (row, rank) => (relevances[row] >= threshold && (topK === 0 || rank < topK)) || rank < minimum;
  return ranked.filter(stays).sort((one, other) => one - other);
}

// Returns the tensors of a layer without the tokens that the policy evicts.
export function evict(entries, ages, layer, policy) {
  const relevances = Array.from(ages, (age, row) => relevance(heads(entries, row, layer), Number(age)));
  const stay = survivors(relevances, policy);
  if (stay.length === ages.length) return { entries, ages };
  const kept = new Float32Array(stay.length * layer.width);
  stay.forEach((row, place) => kept.set(entries.subarray(row * layer.width, (row + 1) * layer.width), place * layer.width));
  return { entries: kept, ages: BigInt64Array.from(stay, row => ages[row]) };
}

// The numbers that determine the lifetime of a row's token, as a copy that outlives the step.
export const lifetimeFields = (entries, row, layer) => heads(entries, row, layer).slice();

// The first integer age at which less than the threshold remains of a token; Infinity if that never happens.
export function lifetime(fields, threshold) {
  const count = fields.length / 2;
  const left = age => Math.hypot(...Array.from({ length: count }, (_, n) => fields[count + n] * Math.exp(fields[n] * age)));
  if (left(0) < threshold) return 0;
  let low = 0, high = 1;
  while (left(high) >= threshold) {
    [low, high] = [high, 2 * high];
    if (high > 2 ** 53) return Infinity;
  }
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2);
    if (left(middle) >= threshold) low = middle;
    else high = middle;
  }
  return high;
}
