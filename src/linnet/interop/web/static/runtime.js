// Loads onnxruntime-web from the page's own files: several threads if the host allows shared memory, otherwise one.

const MAX_THREADS = 4;

export async function loadRuntime({ folder, files: [entry] }) {
  const runtime = await import(new URL(`${folder}/${entry}`, document.baseURI).href);
  const threads = crossOriginIsolated ? Math.min(MAX_THREADS, navigator.hardwareConcurrency || 1) : 1;
  runtime.env.wasm.numThreads = threads;
  runtime.env.logLevel = "error";
  return { runtime, threads };
}

// Fetches a file; onProgress is called with the number of bytes received.
export async function fetched(path, onProgress = () => {}) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${answer.statusText}`);
  const parts = [];
  let bytes = 0;
  for (const reader = answer.body.getReader();;) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    onProgress((bytes += value.length));
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

export const fetchedJson = async path => JSON.parse(new TextDecoder().decode(await fetched(path)));

// Loads the graphs of a model, its description and the data of its tokenizer.
export async function loadModel(runtime, { folder, weights, bytes }, onProgress) {
  const description = await fetchedJson(`${folder}/linnet.json`);
  const definition = await fetchedJson(`${folder}/${description.tokenizer.file}`);
  const data = weights && await fetched(`${folder}/${weights}`, received => onProgress(received / bytes));
  const options = { executionProviders: ["wasm"], externalData: weights ? [{ path: weights, data }] : [] };
  const sessions = {};
  for (const [name, file] of [["step", description.step], ["prompt", description.prompt?.file]])
    if (file) sessions[name] = await runtime.InferenceSession.create(await fetched(`${folder}/${file}`), options);
  return { description, definition, sessions };
}
