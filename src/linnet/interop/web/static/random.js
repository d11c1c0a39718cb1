// Random numbers of a seed as PyTorch draws them on a CPU, and which of them the tokens of a text have used.

const SIZE = 624, MIDDLE = 397;
const MAX_SEED = 2n ** 63n - 1n;
const MAX_DRAWN = 1e8;  // they are drawn again when a state is loaded

// MT19937 (Matsumoto and Nishimura, 1998), seeded with 32 bits.
class MersenneTwister {
  #words = new Uint32Array(SIZE);
  #place = SIZE;

  constructor(seed) {
    this.#words[0] = seed;
    for (let n = 1; n < SIZE; n++) {
      const before = this.#words[n - 1];
      this.#words[n] = Math.imul(1812433253, before ^ (before >>> 30)) + n;
    }
  }

  // Returns the next 32 bits.
  next() {
    if (this.#place === SIZE) this.#refill();
    let word = this.#words[this.#place++];
    word ^= word >>> 11;
    word ^= (word << 7) & 0x9d2c5680;
    word ^= (word << 15) & 0xefc60000;
    return (word ^ (word >>> 18)) >>> 0;
  }

  #refill() {
    const words = this.#words;
    for (let n = 0; n < SIZE; n++) {
      const mixed = (words[n] & 0x80000000) | (words[(n + 1) % SIZE] & 0x7fffffff);
      words[n] = words[(n + MIDDLE) % SIZE] ^ (mixed >>> 1) ^ (mixed & 1 ? 0x9908b0df : 0);
    }
    this.#place = 0;
  }
}

// The random numbers of one text. The number of tokens drawn so far is the place in the sequence of the seed.
export class TextRandom {
  #twister;
  #ahead = null;

  // seed: a BigInt, or null before there is one; drawn: how many of its numbers have been used; runs: those of the tokens that
  // were generated so far, in which neither the seed nor whether the choice is greedy changes.
  constructor(seed = null, drawn = 0, runs = []) {
    if (!(Number.isInteger(drawn) && drawn >= 0 && drawn <= MAX_DRAWN)) throw new Error(`drawn ${drawn}: expected 0 to ${MAX_DRAWN}`);
    Object.assign(this, { seed, drawn, runs });
    this.#twister = new MersenneTwister(Number(BigInt.asUintN(32, seed ?? 0n)));
    for (let n = 0; n < drawn; n++) this.#draw();
  }

  // The number that decides the next token, in (0, 1]; it stays the same until a token has been drawn.
  get uniform() {
    return (this.#ahead ??= 1 - this.#draw());
  }

  // Counts a token, generated as the one at `place` of the text; a greedy choice uses no number.
  count(place, isGreedy) {
    const last = this.runs.at(-1);
    if (last?.end === place && last.isGreedy === isGreedy && last.seed === this.seed) last.end++;
    else this.runs.push({ start: place, end: place + 1, seed: this.seed, drawn: this.drawn, isGreedy });
    if (isGreedy) return;
    this.drawn++;
    this.#ahead = null;
  }

  // Returns a number in [0, 1): the lowest 53 of 64 bits, of which the first 32 are the high ones.
  #draw() {
    const high = this.#twister.next() & 0x1fffff, low = this.#twister.next();
    return (high * 2 ** 32 + low) / 2 ** 53;
  }
}

// Reads a seed, which may be larger than the numbers of JavaScript are exact; null if there is none.
export function readSeed(text) {
  const digits = text.trim();
  if (!digits) return null;
  if (!/^\d+$/.test(digits) || BigInt(digits) > MAX_SEED) throw new Error(`seed ${digits}: expected a whole number from 0 to 2^63 - 1`);
  return BigInt(digits);
}

// Returns a seed from the browser's source of randomness; the generator uses no more than 32 bits.
export const freshSeed = () => BigInt(crypto.getRandomValues(new Uint32Array(1))[0]);
