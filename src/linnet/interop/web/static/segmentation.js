// Segmentation of a text into the pieces of a vocabulary.

// Byte-pair encoding of a short word: the pair that was learned first is merged, the leftmost of equal ones.
export function mergeByRank(model, ids) {
  const ranks = new Map(model.merges.map((pair, rank) => [Array.isArray(pair) ? pair.join(" ") : pair, rank]));
  return letters => {
    const pieces = [...letters];
    if (model.ignore_merges && ids.has(pieces.join(""))) return [pieces.join("")];
    for (;;) {
      let best = -1, least = Infinity;
      for (let place = 0; place + 1 < pieces.length; place++) {
        const rank = ranks.get(`${pieces[place]} ${pieces[place + 1]}`);
        if (rank < least) [best, least] = [place, rank];
      }
      if (best < 0) return pieces;
      pieces.splice(best, 2, pieces[best] + pieces[best + 1]);
    }
  };
}

// The pieces with the largest sum of scores; of equal ones those whose last piece begins first. scores: of each piece;
// unknown: of a letter without a piece. round: rounds a sum; sums beyond `largest` are shifted back to 0.
export function unigram(scores, { unknown, round = sum => sum, largest = Infinity } = {}) {
  const longest = [...scores.keys()].reduce((most, piece) => Math.max(most, piece.length), 0);
  return letters => {
    const best = Array.from({ length: letters.length + 1 }, () => ({ score: 0, start: -1 }));
    const take = (start, end, score) => {
      const sum = round(score + best[start].score);
      if (best[end].start < 0 || sum > best[end].score) best[end] = { score: sum, start };
    };
    for (let start = 0; start < letters.length; start++) {
      if (Math.abs(best[start].score) > largest) lowered(best, start, round);
      let piece = "";
      for (let end = start + 1; end <= letters.length && piece.length < longest; end++) {
        piece += letters[end - 1];
        const score = scores.get(piece) ?? (end === start + 1 ? unknown : undefined);
        if (score !== undefined) take(start, end, score);
      }
    }
    const pieces = [];
    for (let end = letters.length; end > 0; end = best[end].start) pieces.push(letters.slice(best[end].start, end).join(""));
    return pieces.reverse();
  };
}

function lowered(best, start, round) {
  const offset = best[start].score;
  for (const one of best.slice(start)) if (one.start >= 0) one.score = round(one.score - offset);
}

const isBefore = (one, other) => one.score > other.score || (one.score === other.score && one.left < other.left);

// Byte-pair encoding of a whole text: the pair whose merged piece has the highest score is merged, the leftmost of equal
// ones. scores: of each piece that can be made. parts: of the text, [letters, whether they stay unchanged]. Returns the
// pieces, and for each piece of `unused` the two pieces that it was last made of.
export function mergeByScore(scores, unused) {
  return parts => {
    const pieces = parts.map(([letters]) => letters), kept = parts.map(([, isKept]) => isKept);
    const before = pieces.map((_, place) => place - 1), after = pieces.map((_, place) => place + 1);
    const halves = new Map(), pairs = new Heap(isBefore);
    const consider = (left, right) => {
      if (left < 0 || right >= pieces.length || kept[left] || kept[right]) return;
      const piece = pieces[left] + pieces[right], score = scores.get(piece);
      if (score === undefined) return;
      pairs.push({ score, left, right, piece });
      if (unused.has(piece)) halves.set(piece, [pieces[left], pieces[right]]);
    };
    for (let right = 1; right < pieces.length; right++) consider(right - 1, right);
    for (let top = pairs.pop(); top; top = pairs.pop()) {
      const { left, right, piece } = top;
      if (!pieces[left] || !pieces[right] || pieces[left] + pieces[right] !== piece) continue;
      [pieces[left], pieces[right]] = [piece, ""];
      after[left] = after[right];
      if (after[left] < pieces.length) before[after[left]] = left;
      consider(before[left], left);
      consider(left, after[left]);
    }
    return { pieces: pieces.filter(piece => piece), halves };
  };
}

// A priority queue: a binary heap in an array.
class Heap {
  #items = [];
  #isFirst;

  constructor(isFirst) {
    this.#isFirst = isFirst;
  }

  push(item) {
    const items = this.#items;
    let place = items.push(item) - 1;
    for (let above = (place - 1) >> 1; place && this.#isFirst(item, items[above]); above = (place - 1) >> 1) {
      items[place] = items[above];
      place = above;
    }
    items[place] = item;
  }

  pop() {
    const items = this.#items, [first] = items, last = items.pop();
    if (items.length) this.#sink(last);
    return first;
  }

  #sink(item) {
    const items = this.#items;
    let place = 0;
    for (let below = 1; below < items.length; below = 2 * place + 1) {
      if (below + 1 < items.length && this.#isFirst(items[below + 1], items[below])) below++;
      if (!this.#isFirst(items[below], item)) break;
      items[place] = items[below];
      place = below;
    }
    items[place] = item;
  }
}
