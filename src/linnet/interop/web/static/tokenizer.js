// Text to token ids and back, exactly like linnet.data.tokenizer, from the same tokenizer.json.

import { mergeByRank, unigram } from "./segmentation.js";
import { byteOfName, nameOfByte, sentencePieceOf } from "./sentencepiece.js";
import { TokenDecoder } from "./token_decoder.js";

const WORDS =
  /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;

// GPT-2's table: printable Latin-1 characters stand for themselves, the other bytes follow from U+0100 on.
const LETTER_OF_BYTE = (() => {
  const printable = byte => (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
  let others = 0;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(printable(byte) ? byte : 256 + others++));
})();
const BYTE_OF_LETTER = new Map(LETTER_OF_BYTE.map((letter, byte) => [letter, byte]));

export class Tokenizer {
  #rule;
  #tokenBytes;

  constructor(definition, endId) {
    this.endId = endId;
    this.#rule = sentencePieceOf(definition) ?? new OwnRule(definition);
    this.#tokenBytes = this.#rule.tokenBytes;
  }

  encode(text) {
    return this.#rule.encode(text);
  }

  // Returns a decoder of tokens, from the start of a text or from the state of another decoder.
  decoder(state) {
    return new TokenDecoder(this.#tokenBytes, state);
  }
}

// Single characters or bytes, and vocabularies learned over bytes.
class OwnRule {
  #ids = new Map();
  #bytes = [];
  #known = new Map();

  constructor({ model, pre_tokenizer: before, added_tokens: added }) {
    this.words = before ? (before.use_regex ?? true ? WORDS : null) : undefined;
    this.unknown = model.unk_token;
    const special = new Set((added ?? []).filter(token => token.special).map(token => token.id));
    const pieces = Array.isArray(model.vocab) ? model.vocab.map(([piece], id) => [piece, id]) : Object.entries(model.vocab);
    for (const [piece, id] of pieces) {
      this.#ids.set(piece, id);
      this.#bytes[id] = special.has(id) ? [] : before ? bytesOfLetters(piece) : bytesOfPiece(piece, model.byte_fallback);
    }
    this.split = Array.isArray(model.vocab) ? unigram(new Map(model.vocab)) : mergeByRank(model, this.#ids);
  }

  get tokenBytes() {
    return { bytes: this.#bytes };
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
}

function bytesOfLetters(piece) {
  const letters = Array.from(piece);
  if (letters.every(letter => BYTE_OF_LETTER.has(letter))) return letters.map(letter => BYTE_OF_LETTER.get(letter));
  return [...new TextEncoder().encode(piece)];
}

function bytesOfPiece(piece, hasBytes) {
  const byte = hasBytes ? byteOfName(piece) : undefined;
  return byte === undefined ? [...new TextEncoder().encode(piece)] : [byte];
}
