// The page: models that write side by side from one prompt, in this browser, from this page's own files.

import { colorOf, SCALE_STEPS } from "./colors.js";
import { Column } from "./column.js";
import { Controls } from "./controls.js";
import { cacheFiles } from "./offline.js";
import { freshSeed } from "./random.js";
import { fetchedJson, loadModel, loadRuntime } from "./runtime.js";

const DRAW_EVERY_MS = 60;
const part = id => document.getElementById(id);
const columns = [];
const controls = new Controls(document, redraw);
let running = false;

const draw = () => columns.forEach(column => column.draw(controls.policy.threshold));
const say = text => (part("status").textContent = text);
const pause = () => new Promise(resume => setTimeout(resume));

function redraw() {
  columns.forEach(column => column.view.recolor());
  draw();
}

// Writes after `begin` of each column, which has the settings that stay until the end; what cannot be read is said there.
function write(begin) {
  let settings;
  try {
    settings = { count: Number(part("tokens").value), seed: controls.seed ?? freshSeed(), stop: controls.stopTexts };
  } catch (error) {
    return columns.forEach(column => column.say(error.message));
  }
  columns.forEach(column => begin(column, settings));
  writeAll();
}

async function writeAll() {
  setRunning(true);
  let drawn = performance.now();
  while (columns.some(column => column.busy)) {
    for (const column of columns.filter(one => one.busy)) await advance(column);
    if (performance.now() - drawn < DRAW_EVERY_MS) continue;
    draw();
    await pause();
    drawn = performance.now();
  }
  columns.forEach(column => column.finish());
  draw();
  setRunning(false);
}

async function advance(column) {
  try {
    await column.advance(controls.policy, controls.sampling);
  } catch (error) {
    column.say(error.message);
    column.finish();
  }
}

function setRunning(now) {
  running = now;
  part("stop").disabled = !now;
  for (const button of document.querySelectorAll("#write, #more, .save, .load")) button.disabled = now;
  say(now ? "writing" : "ready");
}

function saveState(column) {
  let file;
  try {
    file = column.save();
  } catch (error) {
    column.say(error.message);
    return;
  }
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([file], { type: "application/octet-stream" }));
  link.download = `${column.name}.safetensors`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

async function loadState(column, file) {
  try {
    const content = await file.arrayBuffer();
    if (running) throw new Error("a text is being written; load the file when it has ended");
    const policy = column.load(content);
    if (column.stream.held.length) controls.policy = policy ?? { topK: 0, threshold: -1, minimum: 0 };
    column.say("");
  } catch (error) {
    column.say(`${file.name}: ${error.message}`);
  }
  redraw();
}

function wire(column) {
  const { element } = column, input = element.querySelector("input[type=file]");
  element.querySelector(".save").addEventListener("click", () => saveState(column));
  element.querySelector(".load").addEventListener("click", () => input.click());
  input.addEventListener("change", async () => {
    if (input.files.length && !running) await loadState(column, input.files[0]);
    input.value = "";
  });
}

function showLegend() {
  const entries = [...SCALE_STEPS.map(steps => [colorOf(steps), `${steps}`]), [colorOf(Infinity), "for ever"]];
  part("legend").append("Each token has a stripe for each layer; its color shows for how many tokens the layer remembers it: ");
  for (const [color, text] of entries) {
    const entry = document.createElement("span");
    entry.className = "key";
    entry.style.setProperty("--color", color);
    entry.textContent = text;
    part("legend").append(entry, " ");
  }
  part("legend").append("No color: forgotten.");
}

async function start() {
  const site = await fetchedJson("site.json");
  say("loading the runtime");
  const { runtime, threads } = await loadRuntime(site.runtime);
  for (const entry of site.models) {
    const onProgress = share => say(`loading ${entry.name}: ${Math.round(100 * Math.min(1, share))} %`);
    const model = await loadModel(runtime, entry, onProgress);
    const column = new Column(part("column").content.firstElementChild, entry, { runtime, ...model });
    columns.push(column);
    part("columns").append(column.element);
    wire(column);
  }
  part("memory").hidden = !columns.some(column => column.stream.held.length);
  if (!part("memory").hidden) showLegend();
  const shared = crossOriginIsolated ? "" : " (more need the headers of cross-origin isolation from the host)";
  part("note").textContent = `${site.runtime.runtime} ${site.runtime.version}, ${threads} thread${threads > 1 ? "s" : ""}${shared}. `
    + "Everything is loaded; the page works without a network";
  draw();
  setRunning(false);
  const cached = await cacheFiles();  // last, so that the files loaded above come from the browser's cache
  part("note").append(cached ? " and opens without one." : " but does not open without one, because the browser does not cache its files.");
}

part("controls").addEventListener("submit", event => {
  event.preventDefault();
  if (!running) write((column, settings) => column.start(part("prompt").value, settings));
});
part("more").addEventListener("click", () => write((column, settings) => column.extend(settings)));
part("stop").addEventListener("click", () => columns.forEach(column => column.stop()));
addEventListener("resize", draw);
start().catch(error => say(`cannot start: ${error.message}`));
