// Samples the next token: temperature, then top-k, then top-p, like linnet.inference.sampling.

export function greedy(logits) {
  let best = 0;
  for (let token = 1; token < logits.length; token++) if (logits[token] > logits[best]) best = token;
  return best;
}

// Returns the token where the cumulative probability first reaches `uniform`, in (0, 1], of the total.
export function choose(logits, { temperature, topK, topP }, uniform) {
  if (!Number.isFinite(logits[greedy(logits)])) throw new Error("the model's logits are not finite");
  if (temperature === 0) return greedy(logits);
  // In float32, like the logits, because rounding makes ties.
  const scaled = logits.map(logit => Math.fround(logit / Math.fround(temperature)));
  const order = filterTokens(scaled, topK, topP);
  const weights = softmax(order.map(token => scaled[token]));
  const target = uniform * weights.reduce((sum, weight) => sum + weight, 0);
  let sum = 0;
  for (let place = 0; place < order.length; place++) {
    sum += weights[place];
    if (sum >= target) return order[place];
  }
  return order.at(-1);
}

// Returns the tokens that may be chosen, in the order of their ids; of equally likely ones the first are dropped first.
function filterTokens(logits, topK, topP) {
  let tokens = Array.from(logits.keys());
  if (topK > 0) {
    const least = Float32Array.from(logits).sort().at(-Math.min(topK, logits.length));
    tokens = tokens.filter(token => logits[token] >= least);
  }
  if (topP >= 1) return tokens;
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

function softmax(logits) {
  const largest = logits.reduce((most, logit) => Math.max(most, logit), -Infinity);
  const weights = logits.map(logit => Math.exp(logit - largest));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  return weights.map(weight => weight / total);
}
