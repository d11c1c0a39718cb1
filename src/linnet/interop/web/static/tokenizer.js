// Text to token ids and back, exactly as linnet.data.tokenizer does it, from the same tokenizer.json.

const WORDS =
  /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;
const SINGLE_BYTE = /^<0x([0-9A-F]{2})>$/;

// GPT-2's table: printable Latin-1 characters stand for themselves, the other bytes follow from U+0100 on.
const LETTER_OF_BYTE = (() => {
  const printable = byte => (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
  let others = 0;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(printable(byte) ? byte : 256 + others++));
})();
const BYTE_OF_LETTER = new Map(LETTER_OF_BYTE.map((letter, byte) => [letter, byte]));

export class Tokenizer {
  #ids = new Map();
  #bytes = [];
  #known = new Map();

  constructor(definition, endId) {
    const { model, pre_tokenizer: before } = definition;
    this.endId = endId;
    this.words = before ? (before.use_regex ?? true ? WORDS : null) : undefined;
    this.unknown = model.unk_token;
    const special = new Set((definition.added_tokens ?? []).filter(token => token.special).map(token => token.id));
    const pieces = Array.isArray(model.vocab) ? model.vocab.map(([piece], id) => [piece, id]) : Object.entries(model.vocab);
    for (const [piece, id] of pieces) {
      this.#ids.set(piece, id);
      this.#bytes[id] = special.has(id) ? [] : before ? bytesOfLetters(piece) : bytesOfPiece(piece, model.byte_fallback);
    }
    this.split = Array.isArray(model.vocab) ? unigram(model.vocab) : merging(model, this.#ids);
  }

  encode(text) {
    if (this.words === undefined) return this.#characters(text);
    const words = this.words ? text.match(this.words) ?? [] : [text];
    return words.flatMap(word => this.#ofWord(word));
  }

  #characters(text) {
    return Array.from(text).flatMap(character => {
      if (this.#ids.has(character)) return [this.#ids.get(character)];
      if (this.unknown) return [this.#ids.get(this.unknown)];
      return [...new TextEncoder().encode(character)].map(byte => this.#ids.get(nameOfByte(byte)));
    });
  }

  #ofWord(word) {
    if (!this.#known.has(word)) {
      const letters = [...new TextEncoder().encode(word)].map(byte => LETTER_OF_BYTE[byte]);
      this.#known.set(word, this.split(letters).map(piece => this.#ids.get(piece)));
    }
    return this.#known.get(word);
  }

  // A function that takes token after token, and gives the text that each of them completes; held: bytes before it.
  speaker(held = []) {
    const decoder = incremental();
    const push = bytes => decoder.decode(Uint8Array.from(bytes), { stream: true });
    push(held);
    return token => push(this.#bytes[token] ?? []);
  }

  // The bytes at the end of what these tokens say that are no whole character yet.
  unfinished(tokens) {
    const last = tokens.slice(-64).flatMap(token => this.#bytes[token] ?? []).slice(-3);
    const isBegun = bytes => incremental().decode(Uint8Array.from(bytes), { stream: true }) === "";
    return [0, 1, 2, 3].map(start => last.slice(start)).find(isBegun);
  }
}

const incremental = () => new TextDecoder("utf-8", { ignoreBOM: true });
const nameOfByte = byte => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;

function bytesOfLetters(piece) {
  const letters = Array.from(piece);
  if (letters.every(letter => BYTE_OF_LETTER.has(letter))) return letters.map(letter => BYTE_OF_LETTER.get(letter));
  return [...new TextEncoder().encode(piece)];
}

function bytesOfPiece(piece, hasBytes) {
  const byte = hasBytes && SINGLE_BYTE.exec(piece);
  return byte ? [parseInt(byte[1], 16)] : [...new TextEncoder().encode(piece)];
}

// Byte-pair encoding: the pair that was learned first is joined, the leftmost of equal ones, until none is left.
function merging(model, ids) {
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

// The pieces whose scores have the largest sum; of equal ones those whose last piece begins first.
function unigram(vocabulary) {
  const scores = new Map(vocabulary);
  const longest = vocabulary.reduce((most, [piece]) => Math.max(most, piece.length), 0);
  return letters => {
    const best = Array.from({ length: letters.length + 1 }, () => ({ score: -Infinity, start: -1 }));
    best[0].score = 0;
    for (let start = 0; start < letters.length; start++) {
      for (let end = start + 1; end <= Math.min(letters.length, start + longest); end++) {
        const score = scores.get(letters.slice(start, end).join(""));
        if (score === undefined) continue;
        const sum = score + best[start].score;
        if (best[end].start < 0 || sum > best[end].score) best[end] = { score: sum, start };
      }
    }
    const pieces = [];
    for (let end = letters.length; end > 0; end = best[end].start) pieces.unshift(letters.slice(best[end].start, end).join(""));
    return pieces;
  };
}
