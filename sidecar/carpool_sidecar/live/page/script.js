
// Shows what the stream of events tells. Text is only ever set as text, so nothing that a caller sends becomes markup.

const $ = (id) => document.getElementById(id);
const css = getComputedStyle(document.documentElement);
const numbers = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const KEPT = 200;
const HISTORY = 120; // a minute of snapshots
const STEPS = [0.5, 1, 2, 3, 5, 8, 12, 20, 30]; // seconds that the strip may show
const LATE = 0.6; // seconds that the strip is behind, so that what it shows is known
const LOST_AFTER = 5000, HIDDEN_AFTER = 30000; // milliseconds

const state = {
  snapshot: null, came: 0, batches: [], seen: 0, missed: 0, hello: { reasons: {}, unbatched: {}, may_write: false },
  paused: false, held: null, chosen: null, shown: [], history: {}, process: null,
};

// --- small helpers

const count = (value) => numbers.format(value);
const ms = (value) => value == null ? "–" : value < 10 ? value.toFixed(1) : value < 10000 ? count(value) : (value / 1000).toFixed(1) + "k";
const rate = (value) => value == null ? "–" : value < 10 ? value.toFixed(1) : count(value);
const sum = (map) => Object.values(map).reduce((a, b) => a + b, 0);
const words = (name) => name.replaceAll("_", " ");
const bytes = (value) => value < 1024 ? `${value} B` : value < 1048576 ? `${(value / 1024).toFixed(1)} kB` : `${(value / 1048576).toFixed(1)} MB`;
const plural = (value, word, many = word + "s") => `${count(value)} ${value === 1 ? word : many}`;

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function make(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

// Fills a list with one child for each item; children are kept, so that focus and selected text survive.
function fill(list, items, build, update, none) {
  while (list.children.length > items.length) list.lastElementChild.remove();
  if (list.dataset.none) { list.replaceChildren(); delete list.dataset.none; }
  items.forEach((item, index) => {
    const child = list.children[index] ?? list.appendChild(build());
    update(child, item);
  });
  if (!items.length && none) {
    list.replaceChildren(make(list.tagName === "TBODY" ? "tr" : "li", "none", none));
    list.dataset.none = "1";
  }
}

const colours = {};
function colour(name) {
  return colours[name] ??= css.getPropertyValue("--" + name).trim() ? resolve("--" + name) : resolve("--soft");
}
const probe = make("span");
probe.hidden = true;
document.body.append(probe);
function resolve(variable) { // light-dark() is decided where a colour is used
  probe.style.color = `var(${variable})`;
  return getComputedStyle(probe).color;
}
const withAlpha = (rgb, alpha) => rgb.replace("rgb(", "rgba(").replace(")", `, ${alpha})`);

// --- theme

const themes = ["auto", "dark", "light"];
function setTheme(name) {
  document.documentElement.dataset.theme = name;
  put($("theme"), "Theme: " + name);
  for (const key of Object.keys(colours)) delete colours[key];
  try { localStorage.setItem("carpool-theme", name); } catch { /* storage may be forbidden: then it is forgotten */ }
  draw();
}
$("theme").addEventListener("click", () => {
  setTheme(themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % themes.length]);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(document.documentElement.dataset.theme));

// --- tiles

const TILES = [
  ["arrivals", "Arrivals", (s) => s.rates && [rate(s.rates.arrivals), "a second", s.rates.arrivals, `${plural(s.open_requests, "request")} open now`]],
  ["answers", "Answers", (s) => s.rates && [rate(s.rates.answers), "a second", s.rates.answers, `${plural(s.connections, "connection")}`]],
  ["size", "Batch size", (s) => {
    if (!s.rates || !s.rates.batches) return null;
    const mean = s.rates.rows / s.rates.batches;
    return [mean.toFixed(1), `of ${count(s.largest_batch)}`, mean, `${rate(s.rates.batches)} batches a second`];
  }],
  ["wait", "Wait for a batch", (s) => s.wait.count && [ms(s.wait.p50), "ms, median", s.wait.p99, `99 % within ${ms(s.wait.p99)} ms`]],
  ["predictor", "Predictor", (s) => s.predictor.count && [ms(s.predictor.p50), "ms, median", s.predictor.p99, `99 % within ${ms(s.predictor.p99)} ms`]],
  ["busy", "Load", (s) => {
    if (s.policy !== "adaptive" || !s.learned.capacity) return [count(s.in_flight), "at the predictor", s.in_flight, `at most ${count(s.in_flight_limit)}`];
    return [Math.round(s.learned.utilisation * 100) + " %", "of capacity", s.learned.utilisation, `${count(s.learned.capacity)} instances a second`];
  }],
];
const SVG = "http://www.w3.org/2000/svg";
for (const [id, title] of TILES) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 240 24");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  for (const part of ["area", "edge"]) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", part);
    svg.append(path);
  }
  const value = make("p", "value", make("span", "", "–"), " ", make("small"));
  const tile = make("div", "tile", make("h2", "", title), value, make("p", "under", "\u00a0"), svg);
  tile.id = "tile-" + id;
  $("tiles").append(tile);
  state.history[id] = [];
}

function showTiles(snapshot) {
  for (const [id, , read] of TILES) {
    const tile = $("tile-" + id), found = read(snapshot), past = state.history[id];
    const [value, unit, level, under] = found || ["–", "", null, "no traffic"];
    put(tile.querySelector(".value span"), value);
    put(tile.querySelector(".value small"), unit);
    put(tile.querySelector(".under"), under);
    past.push(level);
    if (past.length > HISTORY) past.shift();
    const top = Math.max(...past.map((each) => each ?? 0)) * 1.15 || 1;
    const points = past.map((each, i) => `${240 - 2 * (past.length - i - 1)} ${(23 - 22 * Math.min(1, (each ?? 0) / top)).toFixed(1)}`);
    const [area, edge] = tile.querySelectorAll("path");
    edge.setAttribute("d", "M" + points.join("L"));
    area.setAttribute("d", `M${240 - 2 * (past.length - 1)} 24L${points.join("L")}L240 24Z`);
  }
}

// What an instance costs by the size of its batch, as it was learned: S(n) / n, both sides of it in logarithms of sizes.
function showCurve(s) {
  const { service_fixed_seconds: fixed, service_instance_seconds: each } = s.learned, most = s.largest_batch;
  const curve = $("curve");
  curve.hidden = !s.knee || most < 2;
  if (curve.hidden) return;
  const left = (size) => (240 * Math.log(size) / Math.log(most)).toFixed(1);
  const points = Array.from({ length: 41 }, (_, i) => most ** (i / 40)).map((size) =>
    `${left(size)} ${(62 - 60 * (fixed / size + each) / (fixed + each)).toFixed(1)}`);
  const [edge, knee] = curve.querySelectorAll("path");
  edge.setAttribute("d", "M" + points.join("L"));
  knee.setAttribute("d", `M${left(s.knee)} 0V64`);
  put(curve.querySelector("figcaption"), `Time for an instance, in batches of 1 to ${count(most)}; the line is at ${count(s.knee)}, from where on larger ones hardly save.`);
}

// --- lists

function swatched(element, reason) {
  element.style.setProperty("--swatch", `var(--${reason}, var(--soft))`);
}

function barItem() {
  const above = make("div", "line", make("code", "name"), make("span", "of"));
  const below = make("div", "line note", make("span", "key"), make("span", "detail"));
  return make("li", "", above, make("div", "bar", make("i")), below);
}

function showBar(item, { path, key, rows, cap, detail, reason }) {
  put(item.querySelector("code"), path);
  put(item.querySelector(".key"), `key ${key}`);
  put(item.querySelector(".of"), `${count(rows)} of ${count(cap)}`);
  put(item.querySelector(".detail"), detail);
  const bar = item.querySelector("i");
  bar.style.setProperty("--share", Math.min(1, rows / cap));
  if (reason) swatched(bar, reason);
}

function countItem() {
  const name = make("span", "name", make("span", "swatch"), make("span", ""));
  return make("li", "", make("div", "line", name, make("span", "of", make("span"), " ", make("small"))), make("p", "meaning"));
}

function showCounts(list, map, meanings, none, coloured) {
  const entries = Object.entries(map).sort((a, b) => b[1] - a[1]), all = sum(map);
  fill(list, entries, countItem, (item, [name, value]) => {
    const swatch = item.querySelector(".swatch");
    swatch.hidden = !coloured;
    if (coloured) swatched(swatch, name);
    item.dataset.reason = name;
    item.dataset.count = value;
    put(item.querySelector(".name span:last-child"), words(name));
    put(item.querySelector(".of span"), count(value));
    put(item.querySelector(".of small"), coloured ? `${(value / all * 100).toFixed(value / all < 0.1 ? 1 : 0)} %` : "");
    put(item.querySelector(".meaning"), (meanings[name] ?? "").replaceAll("`", ""));
  }, none);
}

function showSnapshot() {
  const s = state.snapshot, t = s.totals;
  put($("version"), s.version);
  $("policy").hidden = $("phase").hidden = false;
  put($("policy"), s.batching ? `${s.policy} policy` : "passes through");
  put($("phase"), s.phase);
  $("phase").toggleAttribute("data-bad", s.phase !== "serving");
  showTiles(s);
  put($("queues-note"), s.keys ? `${plural(s.queued_rows, "instance")} in ${plural(s.keys, "queue")}, ${bytes(s.queued_bytes)}` : "");
  fill($("queues"), s.queues, barItem, (item, q) => showBar(item, { ...q, detail: `oldest ${ms(q.waited)} ms` }), "Nothing waits.");
  put($("out-note"), `${count(s.in_flight)} of at most ${count(s.in_flight_limit)}`);
  fill($("out"), s.out, barItem, (item, o) => showBar(item, { ...o, detail: `${words(o.reason)}, ${ms(o.out)} ms` }), "The predictor has nothing to do.");
  fill($("sentences"), s.sentences, () => make("li"), put);
  showCurve(s);
  put($("reasons-note"), plural(sum(t.batches), "batch", "batches"));
  showCounts($("reasons"), t.batches, state.hello.reasons, "No batch has left yet.", true);
  showCounts($("refused"), t.refused, {}, "None.");
  showCounts($("failed"), t.predictor_errors, {}, "None.");
  showCounts($("unbatched"), t.unbatched, state.hello.unbatched, "None.");
  const lanes = Object.entries(t.answers).map(([lane, value]) => `${count(value)} ${lane === "batched" ? "in batches" : "passed through"}`);
  put($("totals"), `${plural(sum(t.answers), "answer")}${lanes.length ? ` (${lanes.join(", ")})` : ""}, ${plural(sum(t.batches), "batch", "batches")}, ` +
    `${plural(sum(t.refused), "error")}; up ${duration(s.uptime)}; ${plural(s.viewers, "viewer")}`);
  $("totals").dataset.answers = sum(t.answers);
  showSettings(s.settings);
}

function duration(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} days`;
}

// --- the strip

const canvas = $("canvas"), strip = $("strip");
const still = matchMedia("(prefers-reduced-motion: reduce)");
let lanesShown = 1, drawnAt = 0, boxes = [];

const end = (batch) => batch.left + batch.took / 1000;

function keepBatches(message) {
  if (state.seen && message.seen > state.seen + message.batches.length) state.missed += message.seen - state.seen - message.batches.length;
  state.seen = message.seen;
  state.batches.push(...message.batches);
  state.batches.sort((a, b) => a.left - b.left);
  if (state.batches.length > KEPT) state.batches.splice(0, state.batches.length - KEPT);
  $("empty").hidden = state.batches.length > 0;
  if (!state.held) showSlider();
}

// Each batch gets the first lane that is free when it leaves.
function lanes(batches) {
  const free = [];
  return batches.map((batch) => {
    let lane = free.findIndex((until) => until <= batch.left + 0.00005);
    if (lane < 0) lane = free.length;
    free[lane] = end(batch);
    return Math.min(lane, 7);
  });
}

function view() {
  if (state.held) return state.held;
  const s = state.snapshot;
  const moved = still.matches || state.paused ? 0 : Math.min(1, (performance.now() - state.came) / 1000);
  const at = s.at + moved - LATE;
  const span = spanOf(at);
  return { at, span, batches: state.batches, out: s.out.map((each) => ({ ...each, left: s.at - each.out / 1000 })) };
}

// As long as was chosen; else as fits: no longer than what is known, and with room for a bar for each batch.
function spanOf(at) {
  const chosen = Number($("span").value), all = state.batches;
  if (chosen > 0) return chosen;
  const known = all.length ? at - all[0].first : 5;
  if (chosen < 0) return Math.max(0.5, known);
  const room = strip.clientWidth / 11 * known / Math.max(1, all.length);
  return STEPS.findLast((step) => step <= Math.min(known, Math.max(room, STEPS[0]))) ?? STEPS[0];
}

function draw() {
  if (!state.snapshot || document.hidden) return;
  const { at, span, batches, out } = view();
  const width = strip.clientWidth, height = canvas.clientHeight, scale = Math.min(3, devicePixelRatio || 1);
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  const x = (time) => width - (at - time) / span * width;
  const axis = 20, top = 8, middle = Math.round((height - axis) * 0.46);
  const lane = lanes(batches), most = Math.max(1, ...lane.map((each) => each + 1), Math.min(8, out.length));
  lanesShown = still.matches ? most : Math.max(most, lanesShown - 0.1);
  const room = height - axis - middle - 10, laneHeight = Math.min(room, room / Math.ceil(lanesShown));
  axes(pen, { at, span, x, width, height, axis, middle });
  boxes = [];
  batches.forEach((batch, index) => {
    if (x(end(batch)) < 0 || x(batch.first) > width) return;
    const tone = batch.error ? colour("bad") : colour(batch.reason), chosen = batch.id === state.chosen?.id;
    pile(pen, batch, x, middle, middle - top, tone, chosen);
    const from = x(batch.left), to = Math.max(from + 1.5, x(end(batch)) - 0.75), y = middle + 10 + lane[index] * laneHeight;
    const tall = laneHeight - 4, share = Math.max(0.06, Math.min(1, batch.rows / batch.cap));
    pen.fillStyle = withAlpha(tone, 0.16);
    pen.fillRect(from, y, to - from, tall);
    pen.fillStyle = withAlpha(tone, chosen ? 1 : 0.88);
    pen.fillRect(from, y + tall * (1 - share), to - from, tall * share);
    if (batch.error) cross(pen, from, y, to, tall);
    if (chosen) outline(pen, from, y, to - from, tall);
    else if (to - from > 26 && tall * share > 15) label(pen, batch.rows, (from + to) / 2, y + tall - 4);
    boxes.push({ batch, from, to, y, tall, came: x(batch.first) });
  });
  for (const [index, each] of out.entries()) {
    if (state.batches.some((batch) => batch.id === each.id)) continue;
    const from = x(each.left), y = middle + 10 + Math.min(index, most - 1) * laneHeight, tall = laneHeight - 4;
    if (from >= width) continue;
    pen.setLineDash([3, 3]);
    pen.strokeStyle = colour(each.reason);
    pen.strokeRect(from + 0.5, y + 0.5, width - from + 4, tall - 1);
    pen.setLineDash([]);
  }
}

// `[id, milliseconds waited, rows]` of each request that was told.
function membersOf({ members }) {
  return members ? members.ids.map((id, index) => [id, members.waited[index] / 1000, members.rows?.[index] ?? 1]) : [];
}

// How requests came together: a step up for each, as high as the batch is full, until it leaves.
function pile(pen, batch, x, base, room, tone, chosen) {
  const left = x(batch.left), came = x(batch.first), tall = room * Math.min(1, batch.rows / batch.cap);
  pen.beginPath();
  pen.moveTo(came, base);
  const known = membersOf(batch);
  if (left - came > 12 && known.length === batch.requests) {
    let rows = 0;
    for (const [, waited, more] of [...known].sort((a, b) => b[1] - a[1])) {
      const at = Math.max(came, x(batch.left - waited / 1000));
      pen.lineTo(at, base - tall * rows / batch.rows);
      rows += more;
      pen.lineTo(at, base - tall * rows / batch.rows);
    }
  }
  pen.lineTo(left, base - tall);
  pen.lineTo(left, base);
  pen.closePath();
  pen.fillStyle = withAlpha(tone, chosen ? 0.6 : 0.26);
  pen.fill();
  pen.strokeStyle = withAlpha(tone, chosen ? 1 : 0.75);
  pen.lineWidth = chosen ? 1.6 : 1;
  pen.stroke();
}

function cross(pen, from, y, to, tall) {
  pen.save();
  pen.beginPath();
  pen.rect(from, y, to - from, tall);
  pen.clip();
  pen.strokeStyle = colour("panel");
  pen.lineWidth = 1.5;
  pen.beginPath();
  for (let at = from - tall; at < to; at += 6) { pen.moveTo(at, y + tall); pen.lineTo(at + tall, y); }
  pen.stroke();
  pen.restore();
}

function outline(pen, x, y, wide, tall) {
  pen.strokeStyle = colour("text");
  pen.lineWidth = 2;
  pen.strokeRect(x - 1, y - 1, wide + 2, tall + 2);
}

function label(pen, text, x, y) {
  pen.font = "600 11px system-ui, sans-serif";
  pen.textAlign = "center";
  pen.fillStyle = colour("panel");
  pen.fillText(text, x, y);
}

function axes(pen, { at, span, x, width, height, axis, middle }) {
  pen.lineWidth = 1;
  pen.font = "11px system-ui, sans-serif";
  pen.fillStyle = colour("soft");
  pen.strokeStyle = colour("line");
  const step = [0.1, 0.2, 0.5, 1, 2, 5, 10].find((each) => each / span * width > 74) ?? 10;
  pen.textAlign = "left";
  for (let time = Math.floor(at / step) * step; x(time) > -80; time -= step) {
    const place = Math.round(x(time)) + 0.5, when = new Date(Math.round(time * 1000));
    pen.beginPath();
    pen.moveTo(place, 0);
    pen.lineTo(place, height - axis + 3);
    pen.stroke();
    const text = when.toLocaleTimeString("en-GB") + (step < 1 ? "." + Math.round(when.getMilliseconds() / 100) % 10 : "");
    if (place > 0 && place < width - 70) pen.fillText(text, place + 4, height - 6);
  }
  pen.strokeStyle = withAlpha(colour("soft"), 0.6);
  pen.beginPath();
  pen.moveTo(0, middle + 0.5);
  pen.lineTo(width, middle + 0.5);
  pen.stroke();
}

function frame(now) {
  requestAnimationFrame(frame);
  if (now - drawnAt < 32 || state.paused || state.held || still.matches) return;
  drawnAt = now;
  draw();
}
requestAnimationFrame(frame);
new ResizeObserver(draw).observe(strip);

// --- choosing a batch

function hold(on) {
  const wanted = on || state.paused || strip.matches(":hover") || strip.matches(":focus-visible");
  if (wanted && !state.held && state.snapshot) state.held = { ...view(), batches: [...state.batches] };
  if (!wanted) state.held = null;
  $("held").hidden = !state.held;
  draw();
}

function under(event) {
  const box = strip.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
  const hit = boxes.find((each) => py >= each.y - 2 && py <= each.y + each.tall + 2 && px >= each.from - 3 && px <= each.to + 3);
  if (hit) return hit.batch;
  let best = null;
  for (const each of boxes) {
    const off = px < each.came ? each.came - px : px > each.to ? px - each.to : Math.abs(px - each.from) / 1000;
    if (!best || off < best.off) best = { off, batch: each.batch };
  }
  return best && best.off < 24 ? best.batch : null;
}

strip.addEventListener("pointerenter", () => hold(true));
strip.addEventListener("pointerleave", () => hold(false));
strip.addEventListener("pointercancel", () => hold(false));
strip.addEventListener("focus", () => hold(false));
strip.addEventListener("blur", () => hold(false));
strip.addEventListener("click", (event) => { const batch = under(event); if (batch) choose(batch); });
strip.addEventListener("keydown", (event) => {
  const all = state.held?.batches ?? state.batches, now = all.findIndex((each) => each.id === state.chosen?.id);
  const to = { ArrowLeft: now < 0 ? all.length - 1 : now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, PageUp: now + 10, PageDown: now - 10, Home: 0, End: all.length - 1 }[event.key];
  if (event.key === "Escape") choose(null);
  if (to === undefined || !all.length) return;
  event.preventDefault();
  hold(true);
  const batch = all[Math.max(0, Math.min(all.length - 1, to))];
  reveal(batch);
  choose(batch);
});
$("span").addEventListener("change", () => { if (state.held) { state.held.span = spanOf(state.held.at); } draw(); });

// Moves a picture that stands still so far that a batch is in it.
function reveal(batch) {
  const held = state.held;
  if (!held) return;
  const margin = held.span * 0.04;
  if (end(batch) > held.at - margin) held.at = end(batch) + margin;
  if (batch.first < held.at - held.span + margin) held.at = batch.first + held.span - margin;
}
$("close").addEventListener("click", () => { choose(null); strip.focus(); });

function choose(batch) {
  state.chosen = batch;
  $("chosen").hidden = !batch;
  showSlider();
  draw();
  if (!batch) return;
  put($("chosen-id"), batch.id);
  put($("chosen-why"), why(batch));
  const facts = [
    ["Left because", words(batch.reason)], ["Instances", `${count(batch.rows)} of ${count(batch.cap)}`],
    ["Requests", count(batch.requests)], ["First request came", clock(batch.first)], ["Left", clock(batch.left)],
    ["First one waited", `${ms((batch.left - batch.first) * 1000)} ms`], ["Predictor", `${ms(batch.took)} ms`],
    ["Outcome", batch.error ? `failed: ${words(batch.error)}` : "answered"], ["Path", batch.path], ["Key", batch.key],
  ];
  const list = $("chosen-facts");
  list.replaceChildren(...facts.map(([name, value]) => make("div", name === "Path" ? "wide" : "", make("dt", "", name), make("dd", "", value))));
  const members = membersOf(batch);
  fill($("members"), members, () => make("tr", "", make("td", "", make("code")), make("td", "number"), make("td", "number")), (row, [name, waited, rows]) => {
    put(row.querySelector("code"), name ?? "none given");
    put(row.children[1], `${ms(waited)} ms`);
    put(row.children[2], count(rows));
  });
  put($("members-note"), batch.requests > members.length ? `${plural(batch.requests - members.length, "other member")} not told here.` : "");
}

const clock = (time) => new Date(time * 1000).toLocaleTimeString("en-GB") + "." + String(Math.floor(time * 1000) % 1000).padStart(3, "0");
const why = (batch) => state.hello.reasons[batch.reason] ?? "";

function showSlider() {
  const all = state.held?.batches ?? state.batches, now = all.findIndex((each) => each.id === state.chosen?.id), batch = state.chosen;
  strip.setAttribute("aria-valuemax", Math.max(0, all.length - 1));
  strip.setAttribute("aria-valuenow", Math.max(0, now));
  const told = batch
    ? `${words(batch.reason)}, ${batch.rows} of ${batch.cap} instances of ${plural(batch.requests, "request")}, waited ${ms((batch.left - batch.first) * 1000)} ms, predictor ${ms(batch.took)} ms${batch.error ? ", failed" : ""}`
    : all.length ? `${plural(all.length, "batch", "batches")}, none chosen` : "No batch has come back yet";
  strip.setAttribute("aria-valuetext", told);
}

function showLegend() {
  const there = [...new Set(state.batches.map((batch) => batch.reason))].sort();
  if (state.batches.some((batch) => batch.error)) there.push("failed");
  fill($("legend"), there, () => make("li", "", make("span", "swatch"), make("span")), (item, reason) => {
    item.firstChild.style.setProperty("--swatch", reason === "failed" ? "var(--bad)" : `var(--${reason}, var(--soft))`);
    put(item.lastChild, words(reason));
  });
  put($("strip-note"), "Above, requests come together; below, the predictor works on them. Full height is a full batch. " +
    `The latest ${plural(state.batches.length, "batch", "batches")}${state.missed ? `; ${count(state.missed)} more were too many to tell` : ""}.`);
}

// --- settings

const UNITS = { max_batch_size: "instances", max_latency: "ms", slo: "ms", max_in_flight: "batches", timeout: "s", log_level: "" };
const EMPTY = { max_latency: "decided", slo: "none", max_in_flight: "decided" };
let edited = new Set();

function showSettings(values) {
  const fields = $("fields"), names = Object.keys(values);
  if (fields.children.length !== names.length) {
    fields.replaceChildren(...names.map((name) => field(name)));
  }
  for (const name of names) {
    const input = $("set-" + name), value = values[name] ?? "";
    if (!edited.has(name) && document.activeElement !== input && input.value !== String(value)) input.value = value;
    input.disabled = !state.hello.may_write;
  }
  $("apply").hidden = !state.hello.may_write;
  put($("settings-note"), state.hello.may_write
    ? "These hold at once, until the process ends. Empty: the sidecar decides."
    : "Changes are allowed from inside the pod (kubectl port-forward counts), or with --admin-write any.");
}

function field(name) {
  const label = make("label", "", name, " ", make("small", "", UNITS[name] ?? ""));
  label.htmlFor = "set-" + name;
  let input;
  if (name === "log_level") {
    input = make("select", "", ...["debug", "info", "warning", "error"].map((level) => make("option", "", level)));
  } else {
    input = make("input");
    input.inputMode = "decimal";
    input.autocomplete = "off";
    input.placeholder = EMPTY[name] ?? "";
  }
  input.id = "set-" + name;
  input.name = name;
  input.addEventListener("input", () => { edited.add(name); put($("applied"), ""); });
  return make("div", "field", label, input);
}

$("settings").addEventListener("submit", async (event) => {
  event.preventDefault();
  const changes = {};
  for (const name of edited) {
    const text = $("set-" + name).value.trim();
    changes[name] = text === "" ? null : name === "log_level" || Number.isNaN(Number(text)) ? text : Number(text);
  }
  if (!Object.keys(changes).length) return tell("Nothing was changed.");
  $("apply").disabled = true;
  try {
    const answer = await fetch("config", { method: "PATCH", headers: { "Content-Type": "application/json" }, body: JSON.stringify(changes) });
    const text = await answer.text();
    if (!answer.ok) return tell(answer.status === 400 ? JSON.parse(text).error : text.trim(), true);
    edited = new Set();
    tell("In force: " + Object.entries(changes).map(([name, value]) => `${name} ${value ?? "empty"}`).join(", "));
    if ($("all").open) showAll();
  } catch (error) {
    tell(`Not changed: ${error.message}`, true);
  } finally {
    $("apply").disabled = false;
  }
});

function tell(text, bad = false) {
  $("applied").toggleAttribute("data-bad", bad);
  put($("applied"), text);
}

async function showAll() {
  const answer = await fetch("config");
  const { learned, live, ...values } = await answer.json();
  fill($("all-settings"), Object.entries(values), () => {
    const head = make("th", "", make("code"));
    head.scope = "row";
    return make("tr", "", head, make("td"));
  }, (row, [name, value]) => {
    put(row.querySelector("code"), name);
    put(row.lastChild, value === null || value === "" ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));
  });
}
$("all").addEventListener("toggle", () => { if ($("all").open) showAll(); });

// --- the stream

function setState(name, text) {
  if ($("state").dataset.state === name && $("state").textContent === text) return;
  $("state").dataset.state = name;
  put($("state"), text);
}

function trouble(text) {
  $("trouble").hidden = !text;
  put($("trouble"), text ?? "");
}

function received(name, value) {
  if (name === "hello") {
    state.hello = value;
    state.seen = 0;
  } else if (name === "snapshot") {
    if (state.process && state.process !== value.process) { // another process: what was seen is not its
      state.batches = [];
      state.missed = 0;
      for (const past of Object.values(state.history)) past.length = 0;
    }
    state.process = value.process;
    state.snapshot = value;
    state.came = performance.now();
    setState(state.paused ? "paused" : "live", state.paused ? "Paused" : "Live");
    if (!state.paused) showSnapshot();
    if (still.matches) draw();
  } else if (name === "batches") {
    const known = new Set(state.batches.map((batch) => batch.id));
    const news = { ...value, batches: value.batches.filter((batch) => !known.has(batch.id)) };
    keepBatches(state.seen ? value : { ...news, seen: value.seen });
    showLegend();
  }
}

// fetch() rather than EventSource: it tells the words of a refusal, and reconnecting is the same in all browsers.
async function listen() {
  const stop = new AbortController();
  let lost = setTimeout(() => stop.abort(), LOST_AFTER);
  try {
    const answer = await fetch("events", { signal: stop.signal, headers: { Accept: "text/event-stream" }, cache: "no-store" });
    if (!answer.ok) throw new Error((await answer.text()).trim());
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    connection = stop;
    trouble(null);
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return null;
      clearTimeout(lost);
      lost = setTimeout(() => stop.abort(), LOST_AFTER);
      text += value;
      let cut;
      while ((cut = text.indexOf("\n\n")) >= 0) {
        const event = Object.fromEntries(text.slice(0, cut).split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
        text = text.slice(cut + 2);
        if (event.data) received(event.event, JSON.parse(event.data));
      }
    }
  } catch (error) {
    return error.name === "AbortError" || error instanceof TypeError ? null : error.message;
  } finally {
    clearTimeout(lost);
    stop.abort();
    connection = null;
  }
}

let connection = null, hiddenTimer;
const sleep = (time) => new Promise((done) => setTimeout(done, time));
const visible = () => new Promise((done) => document.hidden ? document.addEventListener("visibilitychange", done, { once: true }) : done());

document.addEventListener("visibilitychange", () => { // a page that nobody sees takes no place
  clearTimeout(hiddenTimer);
  if (document.hidden) hiddenTimer = setTimeout(() => connection?.abort(), HIDDEN_AFTER);
  else draw();
});

async function run() {
  let pause = 500;
  for (;;) {
    await visible();
    const began = performance.now(), words = await listen();
    if (performance.now() - began > 3000) pause = 500;
    setState("lost", "Connection lost, trying again");
    trouble(words);
    await sleep(pause);
    pause = Math.min(3000, pause * 1.6);
  }
}

$("pause").addEventListener("click", () => {
  state.paused = !state.paused;
  $("pause").setAttribute("aria-pressed", state.paused);
  setState(state.paused ? "paused" : "live", state.paused ? "Paused" : "Live");
  hold(false);
});

try { setTheme(themes.includes(localStorage.getItem("carpool-theme")) ? localStorage.getItem("carpool-theme") : "auto"); } catch { setTheme("auto"); }
run();
