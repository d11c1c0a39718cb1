// Ends a text before the first of its stop texts, like linnet.inference.text_events: a token whose text may be the beginning
// of a stop text is held back until it is known.

const ESCAPES = { n: "\n", r: "\r", t: "\t", "\\": "\\" };

export class StopTexts {
  #texts;
  #beginnings;
  #held = [];
  hasStopped = false;

  constructor(texts = []) {
    this.#texts = texts;
    this.#beginnings = texts.flatMap(text => Array.from({ length: text.length - 1 }, (_, n) => text.slice(0, n + 1)));
  }

  // Takes the text of the next token. Returns the tokens whose text is now certain, as pairs of place and text. Where a stop
  // text has come these are the ones before it, the last of them cut off.
  push(place, text) {
    this.#held.push([place, text]);
    const whole = this.#held.map(([, text]) => text).join("");
    const found = this.#texts.map(stop => ({ start: whole.indexOf(stop), size: stop.length })).filter(({ start }) => start >= 0);
    if (found.length) return this.#stopAt(firstComplete(found).start);
    const begun = this.#beginnings.filter(beginning => whole.endsWith(beginning)).map(beginning => beginning.length);
    const certain = whole.length - Math.max(0, ...begun);
    let end = 0, count = 0;
    while (count < this.#held.length && (end += this.#held[count][1].length) <= certain) count++;
    return this.#held.splice(0, count);
  }

  // Returns the tokens that were held back, at the end of the writing.
  finish() {
    return this.#held.splice(0);
  }

  #stopAt(length) {
    this.hasStopped = true;
    const shown = [];
    for (const [place, text] of this.#held.splice(0)) {
      if (length <= 0) break;
      shown.push([place, text.slice(0, length)]);
      length -= text.length;
    }
    return shown;
  }
}

// The stop text that is complete first, so that the cut does not depend on where tokens end; the longest of those.
const firstComplete = found =>
  found.sort((one, other) => one.start + one.size - other.start - other.size || one.start - other.start)[0];

// Reads stop texts, one a line, with \n, \r, \t and \\ for a line's end, a carriage return, a tab and a backslash.
export function readStopTexts(text) {
  return text.split("\n").filter(Boolean).map(line => line.replace(/\\(.?)/gs, (escape, letter) => {
    if (!(letter in ESCAPES)) throw new Error(`stop text ${line}: ${escape}: expected \\n, \\r, \\t or \\\\`);
    return ESCAPES[letter];
  }));
}
