"use strict";
// Draws a mission, reading by reading, from the JSON of this page. Lengths are in metres, y up.

const mission = JSON.parse(document.getElementById("mission").textContent);
const [ROWS, COLS] = mission.shape; // cells along x and y
const CELLS = ROWS * COLS;
const LAST = mission.policies[0].f1.length - 1; // 0 stands for the state before any reading
const KNOWN = mission.truth !== null; // whether the page shows the true map and metrics
const MEASURES = [
  ["entropy", "ROI entropy [bit]"],
  ["f1", "F1"],
  ["ece", "calibration error"],
  ["brier", "Brier score"],
];
const SVG = "http://www.w3.org/2000/svg";
const SECONDS = 0.7; // time per reading while playing
const dark = matchMedia("(prefers-color-scheme: dark)");

function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
}

function make(parent, tag, attributes = {}, text) {
  const drawn = /^(svg|g|rect|line|path|polyline|circle|text|title)$/.test(tag);
  const node = drawn ? document.createElementNS(SVG, tag) : document.createElement(tag);
  set(node, attributes);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

const byId = (id) => document.getElementById(id);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const rgb = (hex) => [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));

// Returns black or white, whichever contrasts more with a colour.
function inkOn(hex) {
  const [r, g, b] = rgb(hex).map((part) => (part / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000" : "#fff";
}

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Beliefs are stored as changes from reading to reading, in hundredths.
function summed(changes) {
  for (let k = CELLS; k < changes.length; k++) changes[k] += changes[k - CELLS];
  return changes;
}

function paint(canvas, cells, palette) {
  const image = new ImageData(ROWS, COLS);
  for (let x = 0; x < ROWS; x++) {
    for (let y = 0; y < COLS; y++) {
      const [r, g, b] = palette[cells[x * COLS + y]];
      image.data.set([r, g, b, 255], 4 * ((COLS - 1 - y) * ROWS + x));
    }
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

// Axes ------------------------------------------------------------------------------------

function ticks(end) {
  const step = [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000].find((s) => end / s <= 6) ?? end;
  return Array.from({ length: Math.floor(end / step + 1e-9) + 1 }, (_, k) => k * step);
}

function axes(svg, box, xs, ys, xLabel, yLabel, toX, toY, digits) {
  for (const x of xs) {
    make(svg, "text", { x: toX(x), y: box.bottom + 17, "text-anchor": "middle" }, x);
  }
  for (const y of ys) {
    const at = { x: box.left - 7, y: toY(y) + 4.5, "text-anchor": "end" };
    make(svg, "text", at, digits ? y.toFixed(digits) : y);
  }
  const middle = (box.left + box.right) / 2;
  make(svg, "text", { x: middle, y: box.bottom + 36, "text-anchor": "middle" }, xLabel);
  const turn = `translate(13 ${(box.top + box.bottom) / 2}) rotate(-90)`;
  make(svg, "text", { transform: turn, "text-anchor": "middle" }, yLabel);
}

// Maps ------------------------------------------------------------------------------------

const [X_DIM, Y_DIM] = mission.size;
const SCALE = 400 / Math.max(X_DIM, Y_DIM);
const MAP = { left: 46, top: 8, right: 46 + X_DIM * SCALE, bottom: 8 + Y_DIM * SCALE };
const mapX = (x) => MAP.left + x * SCALE;
const mapY = (y) => MAP.bottom - y * SCALE;
const points = (track) => track.map(([x, y]) => `${mapX(x)},${mapY(y)}`).join(" ");

function mapFigure(name, described) {
  const figure = make(byId("maps"), "figure");
  const caption = make(figure, "figcaption");
  make(caption, "b", {}, name);
  const note = make(caption, "span");
  const holder = make(figure, "div", { class: "map" });
  const [width, height] = [MAP.right + 12, MAP.bottom + 42];
  holder.style.maxWidth = `${34 * Math.min(1, width / height)}rem`;
  const canvas = make(holder, "canvas", { width: ROWS, height: COLS, "aria-hidden": "true" });
  const [cellX, cellY] = mission.cell;
  const percent = (part, whole) => `${(100 * part) / whole}%`;
  canvas.style.left = percent(MAP.left, width);
  canvas.style.top = percent(mapY(COLS * cellY), height);
  canvas.style.width = percent(ROWS * cellX * SCALE, width);
  canvas.style.height = percent(COLS * cellY * SCALE, height);
  const box = `0 0 ${width} ${height}`;
  const svg = make(holder, "svg", { viewBox: box, role: "img", "aria-label": described });
  const frame = { x: MAP.left, y: MAP.top, width: X_DIM * SCALE, height: Y_DIM * SCALE };
  make(svg, "rect", { class: "frame", ...frame });
  axes(svg, MAP, ticks(X_DIM), ticks(Y_DIM), "x [m]", "y [m]", mapX, mapY);
  if (mission.zones.length > 0) drawZones(make(svg, "svg", frame));
  return { canvas, svg, note, border: make(svg, "g"), layer: make(svg, "g") };
}

// Zones, obstacles and the area outside the field, clipped to the frame.
function drawZones(frame) {
  const viewBox = `${MAP.left} ${MAP.top} ${X_DIM * SCALE} ${Y_DIM * SCALE}`;
  set(frame, { viewBox, class: "zones", role: "img", "aria-label": mission.closed });
  for (const { rings, label } of mission.zones) {
    const d = rings.map((ring) => `M${points(ring).replaceAll(" ", "L")}Z`).join("");
    make(make(frame, "path", { class: "zone", d }), "title", {}, label);
  }
}

// The UAVs of a policy: path so far, footprint and current position.
function drawTeam(layer, policy, reading) {
  layer.replaceChildren();
  const flown = Math.max(reading, 1); // before any reading, the UAVs are at their starts
  const hues = policy.numbers.map((number) => mission.uavs[number - 1]);
  policy.path.forEach((track, n) => {
    const line = points(track.slice(0, flown));
    const common = { points: line, fill: "none", "stroke-linejoin": "round" };
    make(layer, "polyline", { ...common, class: "casing", "stroke-width": 5 });
    make(layer, "polyline", { ...common, stroke: hues[n], "stroke-width": 2.5 });
    const [x, y] = track[0];
    const ring = { cx: mapX(x), cy: mapY(y), r: 4.5, fill: "#fff", stroke: hues[n] };
    make(layer, "circle", { ...ring, "stroke-width": 2.5 });
  });
  policy.path.forEach((track, n) => {
    const footprint = policy.footprints[n][reading - 1];
    const read = footprint && footprint[1] > footprint[0]; // else it has stopped or is not heard
    if (read) drawFootprint(layer, footprint, hues[n]);
    const [x, y, altitude] = track[flown - 1];
    const at = `translate(${mapX(x)} ${mapY(y)})`;
    const marker = make(layer, "g", { class: "marker", transform: at });
    const silent = reading > 0 && !read;
    const state = silent ? "no reading" : `${altitude} m above ground`;
    make(marker, "title", {}, `UAV ${policy.numbers[n]}, ${state}`);
    const [fill, stroke] = silent ? ["#fff", hues[n]] : [hues[n], "#fff"];
    make(marker, "circle", { r: 9, fill, stroke, "stroke-width": 1.5 });
    make(marker, "text", { y: 4, style: `fill:${inkOn(fill)}` }, policy.numbers[n]);
  });
}

function drawFootprint(layer, [x0, x1, y0, y1], stroke) {
  const at = { x: mapX(x0), y: mapY(y1), fill: "none" };
  const size = { width: (x1 - x0) * SCALE, height: (y1 - y0) * SCALE };
  make(layer, "rect", { ...at, ...size, class: "casing", "stroke-width": 3.5 });
  make(layer, "rect", { ...at, ...size, stroke, "stroke-width": 1.75, "stroke-dasharray": "5 3" });
}

function borderPath(truth) {
  const [cellX, cellY] = mission.cell;
  const parts = [];
  for (let x = 0; x < ROWS; x++) {
    for (let y = 0; y < COLS; y++) {
      const here = truth[x * COLS + y];
      const [left, bottom] = [mapX(x * cellX).toFixed(2), mapY(y * cellY).toFixed(2)];
      if (x > 0 && here !== truth[(x - 1) * COLS + y]) {
        parts.push(`M${left} ${bottom}v${(-cellY * SCALE).toFixed(2)}`);
      }
      if (y > 0 && here !== truth[x * COLS + y - 1]) {
        parts.push(`M${left} ${bottom}h${(cellX * SCALE).toFixed(2)}`);
      }
    }
  }
  return parts.join("");
}

// Curves ----------------------------------------------------------------------------------

const PLOT = { left: 58, top: 12, right: 448, bottom: 212 };
const DASHES = ["", "7 4", "2 4", "9 3 2 3"];

function lineStyle(k) {
  const name = mission.lines[k % mission.lines.length];
  const stroke = dark.matches ? name.dark : name.light;
  return { stroke, "stroke-dasharray": DASHES[k % DASHES.length] };
}

function curve(key, title, label) {
  const top = Math.max(1, ...mission.policies.flatMap((policy) => policy[key]));
  const toX = (reading) => PLOT.left + ((PLOT.right - PLOT.left) * reading) / LAST;
  const toY = (value) => PLOT.bottom - ((PLOT.bottom - PLOT.top) * value) / top;
  const figure = make(byId("curves"), "figure");
  make(make(figure, "figcaption"), "b", {}, title);
  const box = `0 0 ${PLOT.right + 12} ${PLOT.bottom + 44}`;
  const svg = make(figure, "svg", { viewBox: box, role: "img", "aria-label": `${title}, ${label}` });
  const ys = [0, 0.2, 0.4, 0.6, 0.8, 1];
  for (const y of ys) {
    const ends = { x1: PLOT.left, x2: PLOT.right, y1: toY(y), y2: toY(y) };
    make(svg, "line", { class: "grid", ...ends });
  }
  axes(svg, PLOT, ticks(LAST), ys, "readings of each UAV", label, toX, toY, 1);
  const cursor = make(svg, "line", { class: "cursor", y1: PLOT.top, y2: PLOT.bottom });
  const lines = mission.policies.map((policy, k) => {
    const line = policy[key].map((value, reading) => `${toX(reading)},${toY(value)}`).join(" ");
    const style = { fill: "none", "stroke-width": 2.5, "stroke-linejoin": "round" };
    return make(svg, "polyline", { points: line, ...style, ...lineStyle(k) });
  });
  const dots = mission.policies.map((_, k) => make(svg, "circle", { r: 5 }));
  return (reading) => {
    const x = toX(reading);
    set(cursor, { x1: x, x2: x });
    mission.policies.forEach((policy, k) => {
      const { stroke } = lineStyle(k);
      set(lines[k], { stroke });
      set(dots[k], { fill: stroke, cx: x, cy: toY(policy[key][reading]) });
    });
  };
}

// Legend and table -------------------------------------------------------------------------

function legend() {
  const holder = byId("legend");
  holder.replaceChildren();
  for (const [k, policy] of mission.policies.entries()) {
    const span = make(holder, "span");
    const svg = make(span, "svg", { width: 34, height: 10, "aria-hidden": "true" });
    make(svg, "line", { x1: 0, x2: 34, y1: 5, y2: 5, "stroke-width": 3, ...lineStyle(k) });
    span.append(policy.name);
  }
  const bar = make(holder, "span", {}, "P(region of interest) 0");
  const shades = mission.colours.filter((_, k) => k % 10 === 0).join(",");
  make(bar, "i", { class: "bar", style: `background:linear-gradient(90deg,${shades})` });
  bar.append("1");
  const grounds = [];
  if (KNOWN) grounds.push(["var(--roi)", "region of interest"], ["var(--ground)", "other ground"]);
  if (mission.zones.length > 0) grounds.push(["#c1272d70", mission.closed]);
  for (const [background, text] of grounds) {
    const span = make(holder, "span");
    make(span, "i", { style: `background:${background}` });
    span.append(text);
  }
  const stops = mission.policies.some((policy) => policy.readings.some((last) => last < LAST));
  const white = stops ? ", white: no reading" : "";
  make(holder, "span", {}, `UAVs: ○ start, ● now, dashed: footprint${white}`);
}

function valueTable() {
  const table = byId("values");
  const head = make(make(table, "thead"), "tr");
  make(head, "th", { scope: "col" }, "readings");
  for (const policy of mission.policies) {
    for (const [, label] of MEASURES) {
      make(head, "th", { scope: "col" }, `${policy.name}: ${label}`);
    }
  }
  const body = make(table, "tbody");
  for (let reading = 0; reading <= LAST; reading++) {
    const row = make(body, "tr");
    make(row, "th", { scope: "row" }, reading);
    for (const policy of mission.policies) {
      for (const [name] of MEASURES) make(row, "td", {}, policy[name][reading].toFixed(3));
    }
  }
}

// The page --------------------------------------------------------------------------------

async function start() {
  const slider = byId("slider");
  slider.max = LAST;
  const truth = KNOWN ? await inflate(mission.truth) : null;
  const beliefs = await Promise.all(
    mission.policies.map(async (policy) => summed(await inflate(policy.belief))),
  );
  const completed = await Promise.all(
    mission.policies.map(
      async ({ completed: done }) => done && { ...done, map: await inflate(done.map) },
    ),
  );
  const whole = byId("completed");
  whole.parentElement.hidden = !completed.some(Boolean);
  const palette = mission.colours.map(rgb);
  const terrain = KNOWN && mapFigure("Terrain", "Terrain: where the region of interest is");
  if (KNOWN) terrain.note.textContent = "the truth, unknown to the UAVs";
  const panels = mission.policies.map((policy) =>
    mapFigure(policy.name, `Belief of ${policy.name} and the paths of its UAVs`),
  );
  const curves = [];
  if (KNOWN) {
    curves.push(
      curve("entropy", "Entropy of the region of interest", "ROI entropy [bit]"),
      curve("f1", "F1 of the region of interest", "F1"),
    );
    valueTable();
  }
  for (const part of document.querySelectorAll(".of-truth")) part.hidden = !KNOWN;

  function show() {
    const reading = Number(slider.value);
    const said = reading === 0 ? "before any reading" : `reading ${reading} of ${LAST}`;
    byId("reading").textContent = said;
    slider.setAttribute("aria-valuetext", said);
    const values = mission.policies.map((policy, k) => {
      const done = whole.checked && reading === LAST ? completed[k] : null;
      const belief = beliefs[k].subarray(reading * CELLS, (reading + 1) * CELLS);
      paint(panels[k].canvas, done ? done.map : belief, palette);
      drawTeam(panels[k].layer, policy, reading);
      const [entropy, f1, ece] = ["entropy", "f1", "ece"].map((name) =>
        (done ? done[name] : policy[name][reading]).toFixed(3),
      );
      const metrics = `entropy ${entropy} bit, F1 ${f1}, calibration error ${ece}`;
      const shown = KNOWN ? metrics : `readings: ${policy.readings.join(", ")}`;
      const note = done ? `completed map: ${shown}` : shown;
      panels[k].note.textContent = note;
      return `${policy.name}: ${note}`;
    });
    for (const update of curves) update(reading);
    if (timer === null) byId("status").textContent = `${said}. ${values.join(". ")}`;
  }

  function theme() {
    if (KNOWN) paint(terrain.canvas, truth, [rgb(colour("--ground")), rgb(colour("--roi"))]);
    legend();
    show();
  }

  function border() {
    const path = byId("border").checked ? borderPath(truth) : "";
    for (const panel of panels) {
      panel.border.replaceChildren();
      make(panel.border, "path", { d: path, class: "casing", "stroke-width": 2.6 });
      make(panel.border, "path", { d: path, class: "border", "stroke-width": 1 });
    }
  }

  let timer = null;
  function play(on) {
    clearInterval(timer);
    timer = null;
    if (on) {
      if (Number(slider.value) === LAST) slider.value = 0;
      timer = setInterval(() => {
        slider.value = Number(slider.value) + 1;
        if (Number(slider.value) === LAST) play(false);
        show();
      }, 1000 * SECONDS);
    }
    const [sign, word] = byId("play").querySelectorAll("span");
    sign.textContent = on ? "❚❚" : "▶";
    word.textContent = on ? "Pause" : "Play";
    show();
  }

  function follow() {
    const reading = Number.parseInt(location.hash.slice(1), 10);
    if (reading >= 0) slider.value = reading;
    show();
  }

  slider.addEventListener("input", show);
  slider.addEventListener("change", () => history.replaceState(null, "", `#${slider.value}`));
  byId("play").addEventListener("click", () => play(timer === null));
  byId("border").addEventListener("change", border);
  whole.addEventListener("change", () => {
    if (whole.checked) slider.value = LAST; // only the last belief is completed
    show();
  });
  dark.addEventListener("change", theme);
  addEventListener("hashchange", follow);
  addEventListener("keydown", (event) => {
    if (event.target !== document.body || event.ctrlKey || event.altKey || event.metaKey) return;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === " ") play(timer === null);
    else if (step) slider.value = Number(slider.value) + step;
    else return;
    event.preventDefault();
    show();
  });
  slider.value = LAST;
  theme();
  follow();
}

start();
