/* SPDX-License-Identifier: MIT */
const MOST_SPANS = 2000;

/* ---- records ---- */

class Lens {
  constructor() {
    this.head = null;
    this.texts = [];
    this.steps = []; /* [step][strategy] records */
    this.ended = false;
    this.progress = null; /* before the first step */
    this.lines = [];
    this.rest = "";
  }
  /* Parses a part of a stream. An incomplete line waits for the next part; unknown kinds are skipped. */
  feed(text, last) {
    const lines = (this.rest + text).split("\n");
    this.rest = last ? "" : lines.pop();
    for (const line of lines) {
      if (!line.trim()) continue;
      let r;
      try { r = JSON.parse(line); } catch (e) { continue; }
      if (r && this.take(r)) this.lines.push(line);
    }
  }
  take(r) {
    if (r.kind === "lens" && r.version === 1) {
      this.head = r;
    } else if (r.kind === "error") {
      throw new Error(r.error && r.error.message || "the server ended the stream");
    } else if (!this.head) {
      return false;
    } else if (r.kind === "prompt") {
      r.texts.forEach((t, i) => { this.texts[r.from + i] = t; });
    } else if (r.kind === "progress") {
      this.progress = r;
      return false;
    } else if (r.kind === "step") {
      (this.steps[r.i] = this.steps[r.i] || [])[r.s] = r;
    } else if (r.kind === "end") {
      this.ended = true;
    } else {
      return false;
    }
    return true;
  }
  get strategies() { return this.head ? this.head.strategies.length - 1 : 0; }
  /* Number of steps with a record of every strategy. */
  get count() {
    let n = this.steps.length;
    while (n > 0 && !(this.steps[n - 1] && this.steps[n - 1][this.strategies])) n--;
    return n;
  }
  step(i, s) { return this.steps[i] && this.steps[i][s]; }
  token(p) {
    const t = p < this.head.n_prompt ? this.texts[p] : (this.step(p - this.head.n_prompt, 1) || {}).text;
    return t === undefined ? "" : t;
  }
}

function bytesOf(text) {
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}
/* Returns a base64 field as bytes, decoded once. */
function bytes(r, name) {
  const key = "_" + name;
  return r[key] || Object.defineProperty(r, key, { value: bytesOf(r[name]), enumerable: false })[key];
}

/* ---- the view ---- */

let data = new Lens();
const now = { step: 0, strategy: 1, page: -1, token: -1, layer: -1 };
const strips = []; /* [strategy] canvas, picture of all steps, elements */
let colours = null;
let spans = [];
const maps = new Map(); /* bitmaps from the server */

function readColours() {
  const css = getComputedStyle(document.documentElement), get = (n) => css.getPropertyValue(n).trim();
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (c) => {
    probe.fillStyle = c;
    probe.fillRect(0, 0, 1, 1);
    return Array.from(probe.getImageData(0, 0, 1, 1).data).slice(0, 3);
  };
  colours = { back: rgb(get("--panel")), read: rgb("rgb(" + get("--read") + ")"), miss: rgb(get("--miss")), text: get("--text"),
    missed: get("--miss"), focus: get("--focus") };
}

function shade(pixels, at, from, to, share) {
  for (let c = 0; c < 3; c++) pixels[at + c] = from[c] + (to[c] - from[c]) * share;
  pixels[at + 3] = 255;
}

/* Paints a step into a strategy's picture, which grows by doubling. */
function paint(strip, i, r) {
  const reads = bytes(r, "reads");
  if (!strip.pixels || i >= strip.pixels.height) {
    const grown = new ImageData(reads.length, Math.max(16, 2 * i));
    if (strip.pixels) grown.data.set(strip.pixels.data);
    strip.pixels = grown;
  }
  for (let b = 0; b < reads.length; b++)
    shade(strip.pixels.data, 4 * (i * reads.length + b), colours.back, colours.read, Math.sqrt(reads[b] / 255));
  strip.painted = i + 1;
}

const LANE = 12;

function drawStrip(s) {
  const strip = strips[s], n = data.count, scale = window.devicePixelRatio || 1;
  for (let i = strip.painted; i < n; i++) paint(strip, i, data.step(i, s));
  if (!strip.pixels) return;
  const tall = Math.max(2, Math.min(14, Math.floor(110 / n))), width = strip.canvas.clientWidth;
  const c = strip.canvas, high = n * tall + LANE, g = c.getContext("2d");
  if (c.width !== Math.round(width * scale) || c.height !== Math.round(high * scale)) {
    c.width = Math.round(width * scale);
    c.height = Math.round(high * scale);
    c.style.height = high + "px";
  }
  g.setTransform(scale, 0, 0, scale, 0, 0);
  g.clearRect(0, 0, width, high);
  strip.buffer = strip.buffer || document.createElement("canvas");
  strip.buffer.width = strip.pixels.width;
  strip.buffer.height = n;
  strip.buffer.getContext("2d").putImageData(strip.pixels, 0, 0);
  g.imageSmoothingEnabled = false;
  g.drawImage(strip.buffer, 0, 0, width, n * tall);
  g.strokeStyle = colours.text;
  g.lineWidth = 1.5;
  g.strokeRect(0.75, now.step * tall + 0.25, width - 1.5, tall);
  g.fillStyle = colours.missed;
  for (const [p, share] of data.step(now.step, s).missed_at) {
    const x = Math.min(p, data.head.n_prompt) / data.head.n_prompt * width, h = 4 + 8 * Math.min(1, Math.sqrt(10 * share));
    g.beginPath();
    g.moveTo(x, high - h);
    g.lineTo(x - 4, high);
    g.lineTo(x + 4, high);
    g.fill();
  }
}

function drawGrid(r) {
  const c = $("grid"), g = c.getContext("2d"), by = bytes(r, "missed_by"), heads = data.head.kv_heads;
  const layers = data.head.layers, scale = window.devicePixelRatio || 1, width = c.clientWidth;
  const cell = Math.max(5, Math.min(22, Math.floor(230 / layers))), high = layers * cell;
  c.width = Math.round(width * scale);
  c.height = Math.round(high * scale);
  c.style.height = high + "px";
  g.setTransform(scale, 0, 0, scale, 0, 0);
  const dense = new Set(data.head.dense ? data.head.dense[r.s] : []);
  for (let l = 0; l < layers; l++)
    for (let h = 0; h < heads; h++) {
      const pixel = [0, 0, 0, 0];
      shade(pixel, 0, colours.back, colours.miss, Math.sqrt(by[l * heads + h] / 255));
      g.fillStyle = "rgb(" + pixel.slice(0, 3).map(Math.round).join(",") + ")";
      g.fillRect(h * width / heads + 1, l * cell + 1, width / heads - 2, cell - 2);
      if (dense.has(l) && cell >= 9) {
        g.fillStyle = colours.text;
        g.font = Math.min(11, cell - 1) + "px system-ui, sans-serif";
        g.fillText("dense", h * width / heads + 5, (l + 1) * cell - cell / 4);
      }
    }
  const [l, h, missed] = r.worst;
  g.strokeStyle = colours.text;
  g.lineWidth = 2;
  if (missed > 0) g.strokeRect(h * width / heads + 1, l * cell + 1, width / heads - 2, cell - 2);
  const text = missed > 0 ? "most: layer " + l + ", head " + h + ", " + percent(missed) : "nothing is missed";
  c.setAttribute("aria-label", "Missed by layer and KV head, " + text);
  $("grid-of").textContent = text;
}

function listMissed(r) {
  const list = $("missed");
  list.replaceChildren();
  for (const [p, share] of r.missed_at) {
    const item = make("li"), jump = make("button", signs(data.token(p)), { type: "button" });
    jump.setAttribute("aria-label", signs(data.token(p)) + ", token " + number(p) + ", missed " + percent(share));
    jump.addEventListener("click", () => goToken(p));
    item.append(jump, " " + percent(share) + " at " + number(p));
    list.append(item);
  }
  if (!r.missed_at.length) list.append(make("li", "none of 0.01 % or more"));
}

/* ---- the prompt's text ---- */

function drawPage() {
  const from = now.page * MOST_SPANS, to = Math.min(data.head.n_prompt, from + MOST_SPANS), box = $("text");
  spans = [];
  const all = document.createDocumentFragment();
  for (let p = from; p < to; p++) spans.push(all.appendChild(make("span", data.texts[p] === undefined ? "" : inked(data.texts[p]))));
  box.replaceChildren(all);
  box.scrollTop = 0;
  $("page").textContent = "tokens " + number(from) + " to " + number(to - 1) + " of " + number(data.head.n_prompt);
  $("back").disabled = now.page === 0;
  $("on").disabled = to >= data.head.n_prompt;
}

/* Returns the shade of position p: 0 (read by no layer and head) to 8 (read by all). */
function levelOf(r, p) {
  const map = now.layer >= 0 && maps.get(r.i + "/" + r.s);
  if (map) return map[now.layer][p >> 3] >> (p & 7) & 1 ? 8 : 0;
  const v = bytes(r, "reads")[Math.floor(p / data.head.bin)];
  return v === 0 ? 0 : Math.min(8, 1 + Math.floor(v / 32));
}

function shadePage(r) {
  const from = now.page * MOST_SPANS, missed = new Map(r.missed_at);
  for (let k = 0; k < spans.length; k++) {
    const level = levelOf(r, from + k), share = missed.get(from + k);
    const name = (level ? "r" + level : "") + (share ? " miss" : "") + (from + k === now.token ? " at" : "");
    if (spans[k].className !== name) spans[k].className = name;
    if (share) spans[k].title = "missed " + percent(share);
    else if (spans[k].title) spans[k].removeAttribute("title");
  }
}

function goPage(page) {
  const last = Math.floor((data.head.n_prompt - 1) / MOST_SPANS);
  page = Math.max(0, Math.min(last, page));
  if (page === now.page) return;
  now.page = page;
  drawPage();
  shadePage(data.step(now.step, now.strategy));
}

function goToken(p) {
  if (p >= data.head.n_prompt) return;
  now.token = p;
  goPage(Math.floor(p / MOST_SPANS));
  shadePage(data.step(now.step, now.strategy));
  const span = spans[p - now.page * MOST_SPANS], box = $("text");
  box.scrollTop = span.offsetTop - box.clientHeight / 2;
}

/* ---- the whole view ---- */

function buildRows() {
  const rows = $("rows");
  rows.replaceChildren();
  strips.length = 0;
  for (let s = 1; s <= data.strategies; s++) {
    const row = make("div", undefined, { role: "option", id: "row" + s }), line = make("div", undefined, { class: "row" });
    const canvas = make("canvas"), read = make("span"), missed = make("span"), mean = make("span", undefined, { class: "dim" });
    line.append(make("b", data.head.strategies[s]), read, missed, mean);
    row.append(line, canvas);
    row.addEventListener("click", () => go(now.step, s));
    canvas.addEventListener("click", (e) => goToken(Math.min(data.head.n_prompt - 1,
      Math.floor(e.offsetX / canvas.clientWidth * data.head.n_prompt))));
    rows.append(row);
    strips[s] = { canvas, row, read, missed, mean, pixels: null, painted: 0 };
  }
  const layer = $("layer");
  layer.replaceChildren(make("option", "all", { value: "-1" }));
  for (let l = 0; l < data.head.layers; l++) layer.append(make("option", String(l), { value: String(l) }));
  $("layer-of").hidden = !data.live;
}

/* Adds the tokens of new steps. */
function addSteps() {
  const list = $("steps");
  for (let i = list.childElementCount; i < data.count; i++) {
    const r = data.step(i, 1), token = make("span", inked(r.text), { role: "option", id: "step" + i, "aria-selected": "false" });
    token.setAttribute("aria-label", "step " + i + ": " + signs(r.text));
    token.addEventListener("click", () => go(i, now.strategy));
    list.append(token);
  }
  $("time").max = Math.max(0, data.count - 1);
}

function means(s) {
  let sum = 0, worst = 0;
  for (let i = 0; i < data.count; i++) {
    const r = data.step(i, s);
    sum += r.missed;
    if (r.missed > data.step(worst, s).missed) worst = i;
  }
  return { missed: sum / data.count, worst };
}

/* Shows step i of strategy s. */
function go(i, s) {
  if (data.count === 0) return;
  now.step = Math.max(0, Math.min(data.count - 1, i));
  now.strategy = Math.max(1, Math.min(data.strategies, s));
  draw();
}

function draw() {
  const r = data.step(now.step, now.strategy), list = $("steps");
  addSteps();
  for (const old of list.querySelectorAll("[aria-selected=true]")) old.setAttribute("aria-selected", "false");
  const token = list.children[now.step];
  token.setAttribute("aria-selected", "true");
  list.setAttribute("aria-activedescendant", token.id);
  if (token.offsetTop < list.scrollTop || token.offsetTop > list.scrollTop + list.clientHeight - 24)
    list.scrollTop = token.offsetTop - 24;
  for (let i = 0; i < data.count; i++) {
    const own = data.step(i, now.strategy).own, at = list.children[i];
    if (at.classList.contains("other") === !!own) continue;
    at.classList.toggle("other", !!own);
    at.title = own ? "this strategy alone would have chosen " + signs(own.text) : "";
  }
  $("time").value = now.step;
  $("time").setAttribute("aria-valuetext", "step " + now.step + " of " + data.count + ": " + signs(r.text));
  for (let s = 1; s <= data.strategies; s++) {
    const x = data.step(now.step, s), strip = strips[s], m = means(s);
    strip.row.setAttribute("aria-selected", String(s === now.strategy));
    const dense = data.head.dense && data.head.dense[s].length === data.head.layers;
    strip.read.textContent = dense ? "all layers are dense: everything is read" : "read " + number(x.attended, 1);
    strip.missed.textContent = dense ? "" : "missed " + percent(x.missed);
    strip.mean.textContent = dense ? "" : "mean of " + data.count + ": " + percent(m.missed) + ", most at step " + m.worst;
    strip.row.setAttribute("aria-label", data.head.strategies[s] + ": step " + now.step + ", read " +
      number(x.attended, 1) + " tokens per head, missed " + percent(x.missed));
    drawStrip(s);
  }
  $("rows").setAttribute("aria-activedescendant", "row" + now.strategy);
  drawGrid(r);
  listMissed(r);
  if (now.page < 0) {
    now.page = r.missed_at.length ? Math.min(Math.floor(r.missed_at[0][0] / MOST_SPANS),
      Math.floor((data.head.n_prompt - 1) / MOST_SPANS)) : 0;
    drawPage();
  }
  shadePage(r);
  if (now.layer >= 0) fetchMap(r);
}

function summary() {
  if (!data.head) return "";
  const read = data.texts.length, state = data.ended ? "" : data.running ? ", running" : ", incomplete";
  return data.head.model + ": " + number(data.head.n_prompt) + " prompt tokens" +
    (read < data.head.n_prompt ? " (" + number(read) + " loaded)" : "") + ", " + data.count + " steps, tokens chosen by " +
    (data.head.drive || "full") + state;
}

/* Shows the records received so far. */
function refresh() {
  $("sum").textContent = summary();
  $("save").disabled = data.lines.length === 0;
  if (data.count === 0) return;
  if ($("view").hidden) {
    $("view").hidden = false;
    readColours();
    buildRows();
  }
  draw();
}

function start(lens) {
  data = lens;
  Object.assign(now, { step: 0, strategy: 1, page: -1, token: -1, layer: -1 });
  maps.clear();
  spans = [];
  $("view").hidden = true;
  $("steps").replaceChildren();
}

/* Opens a saved lens: lines of records, or a page that contains them. live: the server may still have its bitmaps. */
function show(text, live) {
  const lens = new Lens(), at = text.indexOf('id="data">');
  if (/^\s*<!/.test(text) && at >= 0) text = text.slice(at + 10, text.indexOf("</" + "script>", at));
  lens.live = !!live;
  lens.feed(text, true);
  start(lens);
  if (!lens.head) $("sum").textContent = "The file has no lens.";
  else refresh();
}

function worst() {
  const s = now.strategy;
  go(means(s).worst, s);
  const at = data.step(now.step, s).missed_at;
  if (at.length) goToken(at[0][0]);
}

const keys = {
  ArrowLeft: () => go(now.step - 1, now.strategy), ArrowRight: () => go(now.step + 1, now.strategy),
  ArrowUp: () => go(now.step, now.strategy - 1), ArrowDown: () => go(now.step, now.strategy + 1),
  Home: () => go(0, now.strategy), End: () => go(data.count - 1, now.strategy),
  PageUp: () => goPage(now.page - 1), PageDown: () => goPage(now.page + 1), m: worst
};


/* ---- requests ---- */

let drawing = false;
function refreshSoon() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    refresh();
  });
}

function lensProgress(lens, steps) {
  const p = lens.progress;
  if (lens.count) busy("step " + number(lens.count) + " of at most " + number(steps), lens.count, steps);
  else if (p) busy("reading the prompt: " + percent(p.done / (p.total - steps)), p.done, p.total - steps);
  else if (lens.head) busy("reading the prompt");
}

function keepLens() {
  if (data.asked) kept.write("lens", data.lines.join("\n"));
}

async function look(event) {
  event.preventDefault();
  if (running) return;
  const steps = Number($("n-new").value) || 32, lens = new Lens();
  const body = { prompt: $("prompt").value, max_tokens: steps, drive: $("drive").value, return_progress: true,
    strategies: $("specs").value.split(",").map((s) => s.trim()).filter((s) => s) };
  lens.live = lens.running = lens.asked = true;
  start(lens);
  refresh();
  let failed = null;
  try {
    await post("/lens", body, (text, last) => {
      lens.feed(text, last);
      lensProgress(lens, steps);
      refreshSoon();
    });
    if (!lens.ended) throw new TypeError("incomplete");
  } catch (e) {
    failed = e;
  }
  lens.running = false;
  refresh();
  keepLens();
  if (failed) problem(failed, lens.count > 0);
}

/* Fetches the bitmaps of a step from the server: the positions read in each layer. */
async function fetchMap(r) {
  const id = r.i + "/" + r.s;
  if (maps.has(id) || !data.live) return;
  maps.set(id, null);
  try {
    const answer = await fetch("/lens/" + encodeURIComponent(data.head.id) + "/" + r.i + "?s=" + r.s, { headers: headers() });
    const map = answer.ok ? await answer.json() : null;
    maps.set(id, map && map.layers.map(bytesOf));
  } catch (e) { /* the shades of bins are shown instead */ }
  shadePage(data.step(now.step, now.strategy));
}
