// A chart of the context of each layer over time, in tokens, drawn on a canvas.

import { layerColor } from "./colors.js";

const HEIGHT = 150, LEFT = 42, BOTTOM = 20, TOP = 10, RIGHT = 8;

// Returns a round number at or above another, for the end of an axis.
export function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, value)));
  return [1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10].map(factor => factor * power).find(end => end >= value);
}

export class Chart {
  #canvas;
  #series;

  // names: labels of the lines.
  constructor(canvas, names) {
    this.#canvas = canvas;
    this.names = names;
    this.clear();
  }

  clear() {
    this.#series = this.names.map(() => []);
    this.first = 0;
  }

  // position: of the first point, when a stream continues.
  begin(position) {
    this.clear();
    this.first = position;
  }

  add(sizes) {
    sizes.forEach((size, line) => this.#series[line].push(size));
  }

  draw() {
    const canvas = this.#canvas, scale = devicePixelRatio || 1, width = canvas.clientWidth;
    if (!width) return;
    [canvas.width, canvas.height] = [width * scale, HEIGHT * scale];
    const pen = canvas.getContext("2d"), style = getComputedStyle(canvas);
    pen.scale(scale, scale);
    pen.font = `11px ${style.fontFamily}`;
    const points = Math.max(0, ...this.#series.map(line => line.length));
    const most = roundUp(Math.max(8, ...this.#series.map(line => line.reduce((largest, size) => Math.max(largest, size), 0))));
    const x = place => LEFT + (place / Math.max(1, points - 1)) * (width - LEFT - RIGHT);
    const y = size => HEIGHT - BOTTOM - (size / most) * (HEIGHT - BOTTOM - TOP);
    this.#axes(pen, style, width, { points, most, y });
    this.#series.forEach((line, n) => {
      pen.strokeStyle = layerColor(n, this.names.length).replace("var(--line)", style.getPropertyValue("--line").trim());
      pen.lineWidth = 1.6;
      pen.beginPath();
      line.forEach((size, place) => pen.lineTo(x(place), y(size)));
      pen.stroke();
    });
  }

  #axes(pen, style, width, { points, most, y }) {
    pen.fillStyle = style.getPropertyValue("--soft");
    pen.strokeStyle = style.getPropertyValue("--rule");
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    for (const size of [0, most / 2, most]) {
      pen.beginPath();
      pen.moveTo(LEFT, y(size));
      pen.lineTo(width - RIGHT, y(size));
      pen.stroke();
      pen.fillText(size.toLocaleString("en"), LEFT - 6, y(size));
    }
    pen.textBaseline = "bottom";
    pen.fillText(`token ${(this.first + points).toLocaleString("en")}`, width - RIGHT, HEIGHT - 3);
    pen.textAlign = "left";
    pen.fillText(this.first.toLocaleString("en"), LEFT, HEIGHT - 3);
  }
}
