// The page of a server: one column for each model, each with a stream of its own, which is a session of the server.

import { Api } from "./api.js";
import { Column } from "./column.js";

const find = (id) => document.getElementById(id);
const columns = [];
let api = new Api("");
let models = [];

function settings() {
  const seed = find("seed").value;
  return {
    max_tokens: Number(find("tokens").value),
    temperature: Number(find("temperature").value),
    top_p: Number(find("top_p").value),
    min_p: Number(find("min_p").value),
    ...(seed === "" ? {} : { seed: Number(seed) }),
  };
}

const mode = () => document.querySelector("input[name=mode]:checked").value;

function showMode() {
  const chats = mode() === "chat";
  find("prompt-label").textContent = chats ? "Message" : "Text";
  find("send").textContent = chats ? "Send" : "Write";
  for (const column of columns) column.begin(mode());
}

function showRunning() {
  const runs = columns.some((column) => column.isRunning);
  const isReady = models.length > 0 && columns.length > 0;
  find("send").disabled = runs || !isReady;
  find("retry").disabled = runs || !columns.some((column) => column.canRetry);
  find("stop").disabled = !runs;
  find("add").disabled = !isReady || columns.length >= 4;
}

async function everywhere(action) {
  const running = Promise.all(columns.map(action));
  showRunning();
  await running;
  showRunning();
}

function addColumn(model) {
  const column = new Column(api, models, model, {
    changed: showRunning,
    settings,
    forked: (twin) => place(twin),
    removed: (gone) => {
      columns.splice(columns.indexOf(gone), 1);
      showRunning();
    },
  });
  place(column);
  column.begin(mode());
}

function place(column) {
  columns.push(column);
  find("columns").append(column.element);
  showRunning();
}

async function connect() {
  api.key = find("key").value;
  try {
    models = await api.models();
    find("status").textContent = `${models.length} ${models.length === 1 ? "model" : "models"}: ${models.join(", ")}`;
    if (columns.length === 0 && models.length > 0) addColumn(models[0]);
  } catch (error) {
    models = [];
    find("status").textContent = error.message;
  }
  showRunning();
}

find("controls").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = find("prompt").value;
  if (mode() === "chat" && text.trim() === "") return;
  find("prompt").value = "";
  everywhere((column) => column.write(text, settings()));
});
find("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) find("controls").requestSubmit();
});
find("stop").addEventListener("click", () => columns.forEach((column) => column.stop()));
find("retry").addEventListener("click", () => everywhere((column) => column.retry(settings())));
find("clear").addEventListener("click", () => columns.forEach((column) => column.begin(mode())));
find("add").addEventListener("click", () => addColumn(models[columns.length % models.length]));
find("key").addEventListener("change", connect);
for (const radio of document.querySelectorAll("input[name=mode]")) radio.addEventListener("change", showMode);
for (const slider of document.querySelectorAll("input[type=range]")) {
  const show = () => (slider.nextElementSibling.value = slider.value);
  slider.addEventListener("input", show);
  show();
}
connect();
