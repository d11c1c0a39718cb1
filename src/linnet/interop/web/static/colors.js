// Colors of lifetimes, from cold (forgotten at once) to warm (thousands of steps), and their text.

const STOPS = [[66, 84, 160], [62, 137, 190], [88, 178, 150], [190, 196, 84], [240, 166, 58], [214, 72, 54]];
const LONGEST = 4096;
const ENDLESS = "var(--endless)";

export const SCALE_STEPS = [1, 4, 16, 64, 256, 1024, 4096];

export function colorOf(steps) {
  if (steps === Infinity) return ENDLESS;
  const place = Math.min(1, Math.log2(Math.max(1, steps)) / Math.log2(LONGEST)) * (STOPS.length - 1);
  const lower = Math.min(Math.floor(place), STOPS.length - 2);
  const mixed = STOPS[lower].map((from, channel) => Math.round(from + (place - lower) * (STOPS[lower + 1][channel] - from)));
  return `rgb(${mixed.join(" ")})`;
}

export const formatSteps = steps =>
  steps === Infinity ? "for ever" : steps < 1e9 ? `${steps.toLocaleString("en")} steps` : `${steps.toExponential(1)} steps`;

// Colors of the lines of a chart, one for each layer.
export const layerColor = (layer, layers) => `hsl(${205 + (110 * layer) / Math.max(1, layers - 1)} 62% ${"var(--line)"})`;
