// Decodes tokens one by one, like linnet.data.pieces.TextStream: a character is returned with its last byte, and a space that
// a tokenizer adds before a text is dropped.

const incremental = () => new TextDecoder("utf-8", { ignoreBOM: true });

export class TokenDecoder {
  #decoder = incremental();
  #last;
  #isOpening;
  #tokenBytes;

  // bytes: of each token; opening: of each token while no text has been returned. state: of another decoder to continue.
  constructor({ bytes, opening = bytes, opensOnce = true }, state = { held: [], opening: true }) {
    this.#tokenBytes = { bytes, opening, opensOnce };
    this.#isOpening = state.opening;
    this.#last = state.held;
    this.#decode(state.held);
  }

  // Returns the text that this token completes, which may be empty.
  push(token) {
    const bytes = this.#bytesOf(token);
    this.#last = [...this.#last, ...bytes].slice(-3);
    return this.#decode(bytes);
  }

  // The bytes of an incomplete character at the end, and whether no text has been returned yet.
  get state() {
    const isIncomplete = bytes => incremental().decode(Uint8Array.from(bytes), { stream: true }) === "";
    return { held: [0, 1, 2, 3].map(start => this.#last.slice(start)).find(isIncomplete), opening: this.#isOpening };
  }

  #bytesOf(token) {
    const { bytes, opening, opensOnce } = this.#tokenBytes, whole = bytes[token] ?? [];
    if (!this.#isOpening) return whole;
    const begun = opening[token] ?? [];
    this.#isOpening = begun.length === 0 && (whole.length === 0 || !opensOnce);
    return begun;
  }

  #decode(bytes) {
    return this.#decoder.decode(Uint8Array.from(bytes), { stream: true });
  }
}
