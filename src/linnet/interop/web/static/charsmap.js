// SentencePiece's normalization rules: a trie of bytes packed into integers (an XOR-compressed double array), followed by
// the replacement texts.

const encoder = new TextEncoder();

export class Charsmap {
  #nodes;
  #texts;

  // packed: bytes in base64.
  constructor(packed) {
    const bytes = Uint8Array.from(atob(packed), letter => letter.charCodeAt(0));
    const end = 4 + new DataView(bytes.buffer).getUint32(0, true);
    this.#nodes = new Uint32Array(bytes.slice(4, end).buffer);
    this.#texts = bytes.subarray(end);
  }

  // Returns the longest part of a text from `start` that has a replacement: its length and the replacement; or null.
  longest(text, start) {
    let node = this.#below(0), found = null;
    for (let end = start; end < text.length; ) {
      const character = String.fromCodePoint(text.codePointAt(end));
      end += character.length;
      let isWhole = 0;
      for (const byte of encoder.encode(character)) {
        const place = node ^ byte, packed = this.#nodes[place];
        if ((packed & 0x800000ff) !== byte) return found;
        isWhole = (packed >>> 8) & 1;
        node = place ^ this.#below(place);
      }
      if (isWhole) found = { length: end - start, text: this.#textAt(this.#nodes[node] & 0x7fffffff) };
    }
    return found;
  }

  #below(place) {
    const packed = this.#nodes[place];
    return (packed >>> 10) << ((packed & 0x200) >>> 6);
  }

  #textAt(start) {
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(this.#texts.subarray(start, this.#texts.indexOf(0, start)));
  }
}
