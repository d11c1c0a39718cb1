// One model of the page: its stream, the text of it, and what the layers hold.

const bytesText = (bytes) => {
  const units = ["B", "KiB", "MiB", "GiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) [bytes, unit] = [bytes / 1024, unit + 1];
  return `${bytes.toFixed(unit && bytes < 10 ? 1 : 0)} ${units[unit]}`;
};

// The parts of a cache policy that a label of the server names, as a user writes them.
const limitsOf = (label) => [/top_k (\d+)/.exec(label)?.[1], /threshold ([\d.e+-]+)/.exec(label)?.[1]];

const policyOf = (label) => {
  const [few, weak] = limitsOf(label);
  if (few || weak) return [...(few ? [`top_k=${few}`] : []), ...(weak ? [`threshold=${weak}`] : [])].join(",");
  return label === "no eviction" ? "full" : label;
};

// Write the values of a pair of sliders beside them; the cache policy that they describe.
const policyBySliders = (box) => {
  const [few, weak] = [box.querySelector(".few"), box.querySelector(".weak")];
  const [isAll, isAny] = [few.value === few.max, weak.value === weak.min];
  few.nextElementSibling.value = isAll ? "all" : 2 ** few.value;
  weak.nextElementSibling.value = isAny ? "any" : `1e${weak.value}`;
  const parts = [...(isAll ? [] : [`top_k=${2 ** few.value}`]), ...(isAny ? [] : [`threshold=1e${weak.value}`])];
  return parts.join(",") || "full";
};

// Set a pair of sliders, and what stands beside them, to a policy of the server.
const showPolicy = (box, label) => {
  const [few, weak] = [box.querySelector(".few"), box.querySelector(".weak")];
  const [most, least] = limitsOf(label);
  few.value = most ? Math.log2(most) : few.max;
  weak.value = least ? Math.log10(least) : weak.min;
  few.nextElementSibling.value = most ?? "all";
  weak.nextElementSibling.value = least ?? "any";
};

export class Column {
  constructor(api, models, model, hooks) {
    this.api = api;
    this.models = models;
    this.hooks = hooks;
    this.mode = "text";
    this.session = null;
    this.tokens = []; // of the stream, as they are shown: {text, isGiven}
    this.hidden = 0; // tokens of the stream before them: the end token that begins a document
    this.chosen = null; // the token that the arrow keys have chosen
    this.messages = []; // of the conversation
    this.last = null; // what "again" takes back: the number of tokens or messages before the last answer
    this.element = document.getElementById("column").content.firstElementChild.cloneNode(true);
    this.select = this.#part(".model");
    this.select.append(...models.map((name) => new Option(name, name, false, name === model)));
    this.select.addEventListener("change", () => this.begin(this.mode));
    this.#part(".policy").addEventListener("change", () => this.#changePolicy());
    this.#onSliders(this.element, (policy) => policy);
    this.#part(".fork").addEventListener("click", () => this.#report(() => this.#fork()));
    this.#part(".save").addEventListener("click", () => this.#report(() => this.#save()));
    this.#part(".load").addEventListener("change", (event) => this.#report(() => this.#load(event.target)));
    this.#part(".remove").addEventListener("click", () => this.#remove());
    this.#part(".text").addEventListener("click", (event) => this.#clicked(event.target));
    this.#part(".text").addEventListener("keydown", (event) => this.#pressed(event));
  }

  #part(selector) {
    return this.element.querySelector(selector);
  }

  get isRunning() {
    return this.isBusy === true;
  }

  get canRetry() {
    return this.last !== null;
  }

  // A pair of sliders: when one is moved, `whole` makes the policy of the stream of the one that they describe.
  #onSliders(box, whole) {
    for (const slider of [box.querySelector(".few"), box.querySelector(".weak")]) {
      slider.addEventListener("input", () => policyBySliders(box));
      slider.addEventListener("change", () => {
        this.#part(".policy").value = whole(policyBySliders(box));
        this.#changePolicy();
      });
    }
  }

  // Sliders of their own for layers that have a choice, if there are several; they show what the layers have now, and
  // those of the stream what all of them have.
  #showChoices(layers) {
    const choosing = layers.filter((layer) => layer.has_choice);
    const list = this.#part(".choices");
    this.#part(".each").hidden = choosing.length < 2;
    if (list.childElementCount !== choosing.length)
      list.replaceChildren(...choosing.map((layer) => this.#choice(layer)));
    const sliders = [this.#part(".few"), this.#part(".weak")];
    if (new Set(choosing.map((layer) => layer.cache_policy)).size === 1 && !sliders.includes(document.activeElement))
      showPolicy(this.element, choosing[0].cache_policy);
    choosing.forEach((layer, index) => {
      const row = list.children[index];
      if (row.contains(document.activeElement)) return; // it is being moved
      row.dataset.policy = policyOf(layer.cache_policy);
      showPolicy(row, layer.cache_policy);
    });
  }

  #choice(layer) {
    const row = document.createElement("li");
    const name = document.createElement("span");
    name.textContent = `${layer.layer} ${layer.kind}`;
    row.append(name);
    for (const slider of [this.#part(".few"), this.#part(".weak")]) {
      const label = slider.parentElement.cloneNode(true);
      label.classList.remove("policy-label");
      const input = label.querySelector("input");
      input.setAttribute("aria-label", `Layer ${layer.layer}: ${slider.getAttribute("aria-label")}`);
      row.append(label);
    }
    this.#onSliders(row, (policy) => {
      row.dataset.policy = policy;
      const policies = [...row.parentElement.children].map((each) => each.dataset.policy);
      return new Set(policies).size === 1 ? policy : policies.join("/");
    });
    return row;
  }

  // A new stream, or a new conversation.
  begin(mode) {
    this.controller?.abort();
    this.#release(this.session);
    Object.assign(this, { mode, session: null, tokens: [], messages: [], last: null, held: null, chosen: null, hidden: 0 });
    const ofTexts = this.element.querySelectorAll(".policy-label, .fork, .save, .button, .held");
    for (const part of ofTexts) part.hidden = mode === "chat";
    this.#part(".problem").textContent = "";
    this.#part(".figures").textContent = "";
    this.#part(".layers").replaceChildren();
    this.#part(".choices").replaceChildren();
    this.#part(".each").hidden = true;
    this.#part(".text").replaceChildren();
    this.#draw();
  }

  // End the stream; what has come of a text stays, with its state.
  async stop() {
    if (this.mode === "text" && this.controller && this.session) {
      const path = `v1/sessions/${this.session}/stop`;
      const answer = await this.api.send("POST", path).catch(() => ({ stopped: 0 }));
      if (answer.stopped) return; // the last chunk has the state
    }
    this.controller?.abort();
  }

  // The stream under another cache policy: its tokens are read anew, and it goes on if it was running.
  async #changePolicy() {
    if (this.session === null) return;
    const { isRunning, settings } = this;
    if (isRunning) {
      await this.stop();
      await this.running;
    }
    let isChanged = false;
    await this.#report(async () => {
      const policy = this.#part(".policy").value || null;
      const body = { model: this.select.value, from_state: this.session, cache_policy: policy };
      this.#keep((await this.api.send("POST", "v1/sessions", body)).id);
      await this.#observe();
      this.#draw();
      isChanged = true;
    });
    if (!isRunning || !isChanged) return;
    const left = settings.max_tokens - (this.tokens.length - this.last.tokens);
    if (left > 0) await this.write("", { ...settings, max_tokens: left });
  }

  async write(text, settings) {
    this.last = this.mode === "chat" ? { messages: this.messages.length, text } : { tokens: this.tokens.length, text };
    this.settings = settings;
    this.running = this.#report(() => this.mode === "chat" ? this.#answer(text, settings) : this.#continue(text, settings));
    await this.running;
  }

  async retry(settings) {
    if (this.last === null) return;
    const { text } = this.last;
    await this.#report(async () => {
      if (this.mode === "chat") {
        this.messages.length = this.last.messages;
        this.#draw(); // the turns that were taken back go, before others take their places
      } else await this.#rewind(this.last.tokens);
    });
    await this.write(text, settings);
  }

  // Run an action; what goes wrong is shown in the column.
  async #report(action) {
    this.#part(".problem").textContent = "";
    this.isBusy = true;
    this.hooks.changed();
    try {
      await action();
    } catch (error) {
      if (error.name !== "AbortError") this.#part(".problem").textContent = error.message;
    } finally {
      this.isBusy = false;
      this.hooks.changed();
    }
  }

  async #stream(path, body, take) {
    this.controller = new AbortController();
    const start = performance.now();
    let count = 0;
    try {
      for await (const chunk of this.api.stream(path, body, this.controller.signal)) {
        count += take(chunk);
        const seconds = (performance.now() - start) / 1000;
        if (count) this.#part(".figures").textContent = `${count} tokens, ${(count / seconds).toFixed(0)} tokens/s`;
      }
    } finally {
      this.controller = undefined;
    }
  }

  async #answer(text, settings) {
    this.messages.push({ role: "user", content: text }, { role: "assistant", content: "" });
    const answer = this.messages.at(-1);
    this.#draw();
    const body = { model: this.select.value, messages: this.messages.slice(0, -1), ...settings };
    await this.#stream("v1/chat/completions", body, (chunk) => {
      const piece = chunk.choices[0]?.delta?.content ?? "";
      answer.content += piece;
      if (piece) this.#draw();
      return piece ? 1 : 0;
    });
  }

  async #continue(text, settings) {
    if (this.session === null) {
      const body = { model: this.select.value, cache_policy: this.#part(".policy").value || null };
      const about = await this.api.send("POST", "v1/sessions", body);
      [this.session, this.hidden] = [about.id, about.tokens];
    }
    const before = this.session;
    const shown = this.tokens;
    const { length } = shown;
    const body = {
      model: this.select.value, prompt: text, from_state: before, return_state: true, observe: true, echo: true, ...settings,
    };
    const take = (chunk) => {
      const choice = chunk.choices[0];
      const pieces = choice?.logprobs?.tokens ?? [];
      for (const piece of pieces) this.tokens.push({ text: piece, isGiven: chunk.is_echo === true });
      if (chunk.state) this.#keep(chunk.state);
      if (chunk.layers) this.#showLayers(chunk.layers, chunk.held);
      this.#draw();
      return chunk.is_echo ? 0 : pieces.length;
    };
    try {
      await this.#stream("v1/completions", { ...body, logprobs: 0 }, take);
    } finally {
      if (this.session === before) shown.length = length; // no state has come: the text ends where the session does
      this.#draw();
    }
  }

  #keep(session) {
    this.#release(this.session);
    this.session = session;
  }

  #release(session) {
    if (session) this.api.send("DELETE", `v1/sessions/${session}`).catch(() => {});
  }

  // Take back all tokens of the stream behind the first `length`.
  async #rewind(length) {
    if (this.session === null || length >= this.tokens.length) return;
    // The session may have read bytes of a character that is not whole, and not shown, yet.
    const tokens = (await this.api.send("GET", `v1/sessions/${this.session}`)).tokens - this.hidden - length;
    if (tokens > 0) {
      await this.api.send("POST", `v1/sessions/${this.session}/rewind`, { tokens });
      await this.api.send("POST", `v1/sessions/${this.session}/feed`, { text: "" }); // reads now what is left
      this.tokens.length = length;
      await this.#observe();
      this.#draw();
    }
  }

  async #observe() {
    const about = await this.api.send("GET", `v1/sessions/${this.session}`);
    this.#showLayers(about.layers, about.held);
    this.#part(".figures").textContent = `${about.tokens} tokens, ${bytesText(about.bytes)}`;
  }

  // Arrow keys choose a token or message, and the enter key goes back to it.
  #pressed(event) {
    const parts = this.#part(".text").children;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step && parts.length) {
      const at = this.chosen === null ? parts.length - 1 : this.chosen + step;
      this.chosen = Math.min(Math.max(at, 0), parts.length - 1);
      for (const part of parts) part.classList.toggle("chosen", part === parts[this.chosen]);
      parts[this.chosen].scrollIntoView({ block: "nearest" });
      event.preventDefault();
    } else if (event.key === "Enter" && this.chosen !== null && parts[this.chosen]) {
      this.#clicked(parts[this.chosen]);
    }
  }

  #clicked(target) {
    if (this.isRunning) return;
    this.chosen = null;
    for (const part of this.#part(".text").querySelectorAll(".chosen")) part.classList.remove("chosen");
    if (target.dataset.token !== undefined) {
      this.last = null;
      this.#report(() => this.#rewind(Number(target.dataset.token) + 1));
    } else if (target.dataset.message !== undefined) {
      this.last = null;
      this.messages.length = Number(target.dataset.message) + 1;
      this.#draw();
    }
  }

  async #fork() {
    const twin = new Column(this.api, this.models, this.select.value, this.hooks);
    twin.#part(".policy").value = this.#part(".policy").value;
    twin.begin(this.mode);
    twin.tokens = this.tokens.map((token) => ({ ...token }));
    twin.hidden = this.hidden;
    if (this.session) twin.session = (await this.api.send("POST", `v1/sessions/${this.session}/fork`)).id;
    if (twin.session) await twin.#observe();
    twin.#draw();
    this.hooks.forked(twin);
  }

  async #save() {
    if (this.session === null) throw new Error("There is no text yet.");
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await this.api.download(this.session));
    link.download = `${this.select.value}.safetensors`;
    link.click();
    URL.revokeObjectURL(link.href);
  }

  async #load(input) {
    const [file] = input.files;
    input.value = "";
    if (!file) return;
    const about = await this.api.upload(this.select.value, file);
    this.begin("text");
    this.session = about.id;
    const whole = await this.api.send("GET", `v1/sessions/${about.id}`);
    this.hidden = whole.beginning;
    this.tokens = whole.token_texts.slice(this.hidden).map((text) => ({ text, isGiven: false }));
    await this.#observe();
    this.#draw();
  }

  #remove() {
    this.controller?.abort();
    this.#release(this.session);
    this.element.remove();
    this.hooks.removed(this);
  }

  #showLayers(layers, held) {
    const most = Math.max(1, ...layers.map((layer) => layer.bytes));
    const rows = layers.map((layer) => {
      const row = document.createElement("li");
      const bar = document.createElement("span");
      bar.className = "bar";
      bar.style.width = `${(100 * layer.bytes) / most}%`;
      const name = document.createElement("span");
      name.textContent = `${layer.layer} ${layer.kind}: ${layer.entries}`;
      const bytes = document.createElement("span");
      bytes.className = "bytes";
      bytes.textContent = bytesText(layer.bytes);
      row.append(name, bar, bytes);
      return row;
    });
    this.#part(".layers").replaceChildren(...rows);
    this.#showChoices(layers);
    this.held = held ?? null;
    this.isFaded = false;
  }

  // Bring the text on the page up to date. What is there already stays as it is, so that a long text costs a token as
  // much as a short one, and readers of the screen hear only what is new.
  #draw() {
    const box = this.#part(".text");
    const isAtEnd = box.scrollTop + box.clientHeight > box.scrollHeight - 40;
    const [items, element] = this.mode === "chat" ? [this.messages, this.#turn] : [this.tokens, this.#span];
    while (box.childElementCount > items.length) box.lastElementChild.remove();
    const first = box.childElementCount;
    box.append(...items.slice(first).map((item, index) => element(item, first + index)));
    if (this.mode === "chat") this.#complete(box.lastElementChild);
    else this.#fade(box.children, this.isFaded ? first : 0);
    if (isAtEnd) box.scrollTop = box.scrollHeight;
  }

  #span(token, index) {
    const span = document.createElement("span");
    span.className = token.isGiven ? "token given" : "token";
    span.textContent = token.text;
    span.dataset.token = index;
    return span;
  }

  // Tokens are as strong as the share of the layers that still hold them.
  #fade(spans, first) {
    for (let index = first; index < spans.length; index++) {
      const share = this.held?.[index + this.hidden];
      const opacity = share === undefined ? "" : String(0.25 + 0.75 * share);
      if (spans[index].style.opacity !== opacity) spans[index].style.opacity = opacity;
    }
    this.isFaded = true;
  }

  #turn(message, index) {
    const turn = document.createElement("span");
    turn.className = "turn";
    turn.dataset.message = index;
    const role = document.createElement("b");
    role.textContent = message.role;
    turn.append(role, document.createTextNode(message.content));
    return turn;
  }

  // The last turn grows.
  #complete(turn) {
    if (!turn) return;
    const [{ content }, text] = [this.messages.at(-1), turn.lastChild];
    if (content.length > text.length) text.appendData(content.slice(text.length));
  }
}
