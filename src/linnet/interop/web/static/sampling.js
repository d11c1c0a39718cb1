// Samples the next token, in the order of linnet.inference.sampling: bias, penalties, temperature, top-k, top-p, min-p, typical.

export function greedy(logits) {
  let best = 0;
  for (let token = 1; token < logits.length; token++) if (logits[token] > logits[best]) best = token;
  return best;
}

// Returns the token where the cumulative probability first reaches `uniform`, in (0, 1], of the total.
// counts: `seen`, a set of all tokens so far, and `generated`, a map from tokens to how often each was generated.
export function choose(logits, sampling, uniform, counts) {
  logits = adjust(logits, sampling, counts);
  if (!Number.isFinite(logits[greedy(logits)])) throw new Error("the model's logits are not finite");
  const { temperature } = sampling;
  if (temperature === 0) return greedy(logits);
  // In float32, like the logits, because rounding makes ties.
  const scaled = logits.map(logit => Math.fround(logit / Math.fround(temperature)));
  const order = filterTokens(scaled, sampling);
  const weights = softmax(order.map(token => scaled[token]));
  const target = uniform * weights.reduce((sum, weight) => sum + weight, 0);
  let sum = 0;
  for (let place = 0; place < order.length; place++) {
    sum += weights[place];
    if (sum >= target) return order[place];
  }
  return order.at(-1);
}

// Returns the logits after the bias and the penalties. Every number and every result is rounded to float32, as in Python.
export function adjust(logits, { repetition = 1, frequency = 0, presence = 0, bias = [] }, counts) {
  const adjusted = Float32Array.from(logits);
  for (const [token, value] of bias) {
    if (!(token < adjusted.length)) throw new Error(`token id ${token}: expected 0 to ${adjusted.length - 1}`);
    adjusted[token] += Math.fround(value);
  }
  const penalty = Math.fround(repetition), perTime = Math.fround(frequency), once = Math.fround(presence);
  if (repetition !== 1)
    for (const token of counts.seen)
      if (token < adjusted.length) adjusted[token] = adjusted[token] < 0 ? adjusted[token] * penalty : adjusted[token] / penalty;
  if (frequency || presence)
    for (const [token, times] of counts.generated) adjusted[token] -= Math.fround(Math.fround(perTime * times) + once);
  return adjusted;
}

// Returns the tokens that may be chosen, in the order of their ids.
function filterTokens(logits, { topK, topP, minP = 0, typicalP = 1 }) {
  let tokens = Array.from(logits.keys());
  if (topK > 0) {
    const least = Float32Array.from(logits).sort().at(-Math.min(topK, logits.length));
    tokens = tokens.filter(token => logits[token] >= least);
  }
  if (topP < 1) tokens = withinTopP(logits, tokens, topP);
  if (minP > 0) {
    const shares = softmax(tokens.map(token => logits[token]));
    const least = minP * shares.reduce((most, share) => Math.max(most, share), 0);
    tokens = tokens.filter((_, place) => shares[place] >= least);
  }
  return typicalP < 1 ? typical(logits, tokens, typicalP) : tokens;
}

// Drops the least likely tokens that together have at most 1 - topP; of equally likely ones the first are dropped first.
function withinTopP(logits, tokens, topP) {
  const ascending = [...tokens].sort((one, other) => logits[one] - logits[other] || one - other);
  const shares = softmax(ascending.map(token => logits[token]));
  const dropped = new Set();
  let sum = 0;
  for (let place = 0; place < ascending.length - 1; place++) {
    sum += shares[place];
    if (sum <= 1 - topP) dropped.add(ascending[place]);
  }
  return tokens.filter(token => !dropped.has(token));
}

// Keeps the tokens whose information is closest to the entropy, as many as together reach typicalP.
function typical(logits, tokens, typicalP) {
  const shares = softmax(tokens.map(token => logits[token]));
  const entropy = shares.reduce((sum, share) => (share ? sum - share * Math.log(share) : sum), 0);
  const distances = shares.map(share => Math.abs(-Math.log(share) - entropy));
  const closest = [...shares.keys()].sort((one, other) => distances[one] - distances[other]);
  let sum = 0;
  const last = closest.find(place => (sum += shares[place]) >= typicalP) ?? closest.at(-1);
  return tokens.filter((_, place) => distances[place] <= distances[last]);
}

function softmax(logits) {
  const largest = logits.reduce((most, logit) => Math.max(most, logit), -Infinity);
  const weights = logits.map(logit => Math.exp(logit - largest));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  return weights.map(weight => weight / total);
}
