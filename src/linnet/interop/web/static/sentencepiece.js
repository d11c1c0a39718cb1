// Encodes like the sentencepiece package, from the tokenizer.json of linnet.data.sentencepiece.

import { Charsmap } from "./charsmap.js";
import { mergeByScore, unigram } from "./segmentation.js";

const SPACE = "▁";
const UNKNOWN_PENALTY = 10;
const LARGEST_SUM = 100_000;
const isOneSpace = step => step.type === "Replace" && step.pattern.Regex === " {2,}";

// Returns null if the tokenizer was not made from a SentencePiece model.
export function sentencePieceOf({ model, normalizer, post_processor: after }) {
  const group = name => after.special_tokens[`sentencepiece:${name}`];
  if (!after?.special_tokens?.["sentencepiece:reserved"]) return null;
  const ranks = group("ranks");
  const pieces = ranks ? ranks.tokens.map((piece, token) => [piece, -ranks.ids[token]]) : model.vocab;
  const steps = normalizer.normalizers, rules = steps.find(step => step.type === "Precompiled");
  return new SentencePiece({
    pieces, isUnigram: !ranks, byteFallback: model.byte_fallback,
    reserved: new Set(group("reserved").ids), userDefined: new Set(group("user_defined").ids),
    unused: new Set(group("unused").ids),
    unknown: group("unknown").ids[0], unknownText: group("unknown").tokens[0],
    rules: rules ? new Charsmap(rules.precompiled_charsmap) : null,
    prefix: steps.some(step => step.type === "Prepend"), collapse: steps.some(isOneSpace),
  });
}

class SentencePiece {
  #options;
  #ids = new Map();
  #symbols = new Set();
  #longest;
  #split;

  constructor(options) {
    this.#options = options;
    const { pieces, reserved, unused, userDefined } = options, scores = new Map(), normal = [];
    pieces.forEach(([piece, score], token) => {
      if (!unused.has(token)) this.#ids.set(piece, token);
      if (reserved.has(token)) return;
      if (userDefined.has(token)) this.#symbols.add(piece);
      else if (!unused.has(token)) normal.push(score);
      if (!options.isUnigram || !unused.has(token)) scores.set(piece, score);
    });
    this.#longest = Math.max(0, ...[...this.#symbols].map(symbol => symbol.length));
    const unknown = Math.fround(normal.reduce((least, score) => Math.min(least, score), Infinity) - UNKNOWN_PENALTY);
    const likeliest = unigram(scores, { unknown, round: Math.fround, largest: LARGEST_SUM });
    this.#split = options.isUnigram ? text => likeliest(Array.from(text)) : this.#merge(scores);
  }

  encode(text) {
    const { unknown, byteFallback, reserved } = this.#options, ids = [];
    for (const piece of this.#split(this.#normalized(text))) {
      const token = this.#ids.get(piece) ?? unknown;
      if (!reserved.has(token)) ids.push(token);
      else if (byteFallback) ids.push(...[...new TextEncoder().encode(piece)].map(byte => this.#ids.get(nameOfByte(byte))));
      else if (ids.at(-1) !== unknown) ids.push(unknown);
    }
    return ids;
  }

  // The bytes of tokens, and their bytes while no text has been returned, as in linnet.data.pieces.
  get tokenBytes() {
    const { pieces, reserved, unknown, unknownText, byteFallback, prefix, collapse } = this.#options;
    const encode = text => [...new TextEncoder().encode(text)];
    const bytes = pieces.map(([piece], token) => {
      if (token === unknown) return encode(unknownText);
      if (!reserved.has(token)) return encode(piece.replaceAll(SPACE, " "));
      return [byteFallback ? byteOfName(piece) : undefined].filter(byte => byte !== undefined);
    });
    const drops = ([piece], token) => (prefix || collapse) && token !== unknown && piece.startsWith(SPACE);
    return { bytes, opening: bytes.map((one, token) => (drops(pieces[token], token) ? one.slice(1) : one)), opensOnce: !collapse };
  }

  #normalized(text) {
    const { prefix, collapse } = this.#options;
    let said = prefix && text ? SPACE : "", isBehindSpace = collapse;
    for (const part of this.#replaced(text)) {
      const rest = isBehindSpace ? part.replace(/^ +/, "") : part;
      if (!rest) continue;
      said += rest.replaceAll(" ", SPACE);
      isBehindSpace = collapse && rest.endsWith(" ");
    }
    return collapse ? said.replace(/▁+$/, "") : said;
  }

  // Yields the text in normalized parts; no rule changes a user-defined piece.
  *#replaced(text) {
    const { rules } = this.#options;
    for (let place = 0; place < text.length; ) {
      const symbol = this.#symbolAt(text, place);
      const rule = symbol ? null : rules?.longest(text, place);
      const own = symbol || String.fromCodePoint(text.codePointAt(place));
      yield rule ? rule.text : own;
      place += rule ? rule.length : own.length;
    }
  }

  // Returns the longest user-defined piece that begins here, or an empty text.
  #symbolAt(text, place) {
    for (let length = this.#longest; length > 0; length--) {
      const found = text.slice(place, place + length);
      if (this.#symbols.has(found)) return found;
    }
    return "";
  }

  *#parts(text) {
    for (let place = 0; place < text.length; ) {
      const symbol = this.#symbolAt(text, place);
      const letters = symbol || String.fromCodePoint(text.codePointAt(place));
      yield [letters, symbol !== ""];
      place += letters.length;
    }
  }

  // Unused pieces are merged and then split again.
  #merge(scores) {
    const { pieces, unused } = this.#options, names = new Set([...unused].map(token => pieces[token][0]));
    const merged = mergeByScore(scores, names);
    return text => {
      const { pieces: found, halves } = merged([...this.#parts(text)]);
      const apart = piece => (halves.has(piece) ? halves.get(piece).flatMap(apart) : [piece]);
      return found.flatMap(apart);
    };
  }
}

// The name of the piece for a byte.
export const nameOfByte = byte => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;

// The byte of such a name; undefined for others.
export function byteOfName(piece) {
  const found = /^<0x([0-9A-F]{2})>$/.exec(piece);
  return found ? parseInt(found[1], 16) : undefined;
}
