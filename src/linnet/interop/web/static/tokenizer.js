// Text to token ids and back, exactly like linnet.data.tokenizer, from the same tokenizer.json.

import { mergeByRank, unigram } from "./segmentation.js";
import { byteOfName, nameOfByte, sentencePieceOf } from "./sentencepiece.js";
import { TokenDecoder } from "./token_decoder.js";

// The words of `ByteLevel` in the tokenizers library.
const WORDS = String.raw`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`;
const ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const ANY_CASE = "'(?:[sSſ]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])";

// An expression of the library in JavaScript, which has other white space, and groups without case only of late.
const regexOf = expression =>
  new RegExp(expression.replace(ENDINGS, ANY_CASE).replaceAll("\\s", "\\p{White_Space}").replaceAll("\\S", "\\P{White_Space}"), "gu");

// The expressions that cut a text one after the other, of a pre-tokenizer that ends with `ByteLevel`.
function cutsOf(step) {
  if (step.type === "Sequence") return step.pretokenizers.flatMap(cutsOf);
  if (step.type === "ByteLevel") return step.use_regex ?? true ? [regexOf(WORDS)] : [];
  return [regexOf(step.type === "Digits" ? "\\p{N}" : step.pattern.Regex)];
}

// Matches of an expression and the text between them.
function cut(text, expression) {
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(expression)) {
    if (match.index > end) parts.push(text.slice(end, match.index));
    if (match[0]) parts.push(match[0]);
    end = match.index + match[0].length;
  }
  return end < text.length ? [...parts, text.slice(end)] : parts;
}

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
  #literal;
  #normalized;

  constructor({ model, normalizer, pre_tokenizer: before, added_tokens: added }) {
    this.cuts = before ? cutsOf(before) : null;
    this.unknown = model.unk_token;
    this.normalize = normalizer ? text => text.normalize("NFC") : text => text;
    const pieces = Array.isArray(model.vocab) ? model.vocab.map(([piece], id) => [piece, id]) : Object.entries(model.vocab);
    for (const [piece, id] of pieces) {
      this.#ids.set(piece, id);
      this.#bytes[id] = before ? bytesOfLetters(piece) : bytesOfPiece(piece, model.byte_fallback);
    }
    this.split = Array.isArray(model.vocab) ? unigram(new Map(model.vocab)) : mergeByRank(model, this.#ids);
    const ordinary = (added ?? []).filter(token => !token.special), written = new Set((added ?? []).map(token => token.content));
    for (const token of added ?? []) if (token.special) this.#bytes[token.id] = [];
    const ids = isNormalized =>
      new Map(
        ordinary.filter(token => token.normalized === isNormalized)
          .map(token => [isNormalized ? this.normalize(token.content) : token.content, token.id])
      );
    [this.#literal, this.#normalized] = [ids(false), ids(true)].map(ids => new AddedTokens(ids));
    for (const { ids } of [this.#literal, this.#normalized])
      for (const [name, id] of ids) this.#bytes[id] = written.has(name) || !before ? utf8(name) : bytesOfLetters(name);
  }

  get tokenBytes() {
    return { bytes: this.#bytes };
  }

  // Added tokens are taken out of a text first, those that are normalized once the rest is, and the longest of each.
  encode(text) {
    return this.#literal.encode(text, rest => this.#normalized.encode(this.normalize(rest), part => this.#ofText(part)));
  }

  #ofText(text) {
    if (!this.cuts) return this.#characters(text);
    const words = this.cuts.reduce((parts, expression) => parts.flatMap(part => cut(part, expression)), text ? [text] : []);
    return words.flatMap(word => this.#ofWord(word));
  }

  #characters(text) {
    return Array.from(text).flatMap(character => {
      if (this.#ids.has(character)) return [this.#ids.get(character)];
      if (this.unknown) return [this.#ids.get(this.unknown)];
      return utf8(character).map(byte => this.#ids.get(nameOfByte(byte)));
    });
  }

  #ofWord(word) {
    if (!this.#known.has(word)) {
      const letters = utf8(word).map(byte => LETTER_OF_BYTE[byte]);
      this.#known.set(word, this.split(letters).map(piece => this.#ids.get(piece)));
    }
    return this.#known.get(word);
  }
}

// Names of added tokens in a text, by their ids.
class AddedTokens {
  #names;

  constructor(ids) {
    this.ids = ids;
    const longestFirst = [...ids.keys()].sort((one, other) => other.length - one.length);
    const escaped = longestFirst.map(name => name.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"));
    this.#names = escaped.length ? new RegExp(escaped.join("|"), "gu") : null;
  }

  // The ids of a text; encodeRest: returns those of the text between the names.
  encode(text, encodeRest) {
    if (!this.#names) return encodeRest(text);
    return cut(text, this.#names).flatMap(part => (this.ids.has(part) ? [this.ids.get(part)] : encodeRest(part)));
  }
}

const utf8 = text => [...new TextEncoder().encode(text)];

function bytesOfLetters(piece) {
  const letters = Array.from(piece);
  if (letters.every(letter => BYTE_OF_LETTER.has(letter))) return letters.map(letter => BYTE_OF_LETTER.get(letter));
  return utf8(piece);
}

function bytesOfPiece(piece, hasBytes) {
  const byte = hasBytes ? byteOfName(piece) : undefined;
  return byte === undefined ? utf8(piece) : [byte];
}
