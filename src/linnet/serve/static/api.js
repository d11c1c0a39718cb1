// Requests to the server.

export class Api {
  constructor(key) {
    this.key = key;
  }

  #headers(json = true) {
    return {
      ...(json ? { "content-type": "application/json" } : {}),
      ...(this.key ? { authorization: `Bearer ${this.key}` } : {}),
    };
  }

  async #checked(response) {
    if (response.ok) return response;
    const body = await response.json().catch(() => ({}));
    throw new Error(body.error?.message ?? `status ${response.status}`);
  }

  async send(method, path, body) {
    const request = { method, headers: this.#headers(), ...(body ? { body: JSON.stringify(body) } : {}) };
    return (await this.#checked(await fetch(path, request))).json();
  }

  async models() {
    return (await this.send("GET", "v1/models")).data.map((model) => model.id);
  }

  async download(session) {
    const answer = await fetch(`v1/sessions/${session}/state`, { headers: this.#headers(false) });
    return (await this.#checked(answer)).blob();
  }

  async upload(model, file) {
    const path = `v1/sessions?model=${encodeURIComponent(model)}`;
    return (await this.#checked(await fetch(path, { method: "PUT", headers: this.#headers(false), body: file }))).json();
  }

  // The chunks of a stream of server-sent events, up to its end.
  async *stream(path, body, signal) {
    const request = { method: "POST", headers: this.#headers(), body: JSON.stringify({ ...body, stream: true }), signal };
    const reader = (await this.#checked(await fetch(path, request))).body.getReader();
    const decoder = new TextDecoder();
    let held = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (held + decoder.decode(value, { stream: true })).split("\n");
      held = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Error(chunk.error.message);
        yield chunk;
      }
    }
  }
}
