// Tokens that come one after the other as text, as linnet.data.pieces.TextStream says them: a character is said with its
// last byte, and a space that a tokenizer has put before a text is not said.

const incremental = () => new TextDecoder("utf-8", { ignoreBOM: true });

export class Speaker {
  #decoder = incremental();
  #last;
  #isOpening;
  #spelled;

  // bytes: what each token stands for; opening: as long as nothing has been said. standing: where another one stood.
  constructor({ bytes, opening = bytes, opensOnce = true }, standing = { held: [], opening: true }) {
    this.#spelled = { bytes, opening, opensOnce };
    this.#isOpening = standing.opening;
    this.#last = standing.held;
    this.#decode(standing.held);
  }

  // The text that this token completes, perhaps none.
  say(token) {
    const bytes = this.#bytesOf(token);
    this.#last = [...this.#last, ...bytes].slice(-3);
    return this.#decode(bytes);
  }

  // The bytes at the end that are no whole character yet, and whether nothing has been said.
  get standing() {
    const isBegun = bytes => incremental().decode(Uint8Array.from(bytes), { stream: true }) === "";
    return { held: [0, 1, 2, 3].map(start => this.#last.slice(start)).find(isBegun), opening: this.#isOpening };
  }

  #bytesOf(token) {
    const { bytes, opening, opensOnce } = this.#spelled, whole = bytes[token] ?? [];
    if (!this.#isOpening) return whole;
    const begun = opening[token] ?? [];
    this.#isOpening = begun.length === 0 && (whole.length === 0 || !opensOnce);
    return begun;
  }

  #decode(bytes) {
    return this.#decoder.decode(Uint8Array.from(bytes), { stream: true });
  }
}
