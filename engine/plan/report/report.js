// The report's tables, map and node view. Everything that it shows is in the page.
"use strict";
const page = document;
const data = (id) => {
  const found = page.getElementById(id);
  return found ? JSON.parse(found.textContent) : null;
};
const make = (tag, css, text) => {
  const element = page.createElement(tag);
  if (css) element.className = css;
  if (text !== undefined) element.textContent = text;
  return element;
};
const readable = (value, unit) => {
  if (value === null) return "no row";
  if (unit !== "bytes") return `${value.toLocaleString("en")} ${unit}`.trim();
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let size = value, at = 0;
  while (Math.abs(size) >= 1024 && at < units.length - 1) { size /= 1024; at += 1; }
  return at ? `${size.toFixed(1)} ${units[at]}` : `${size} B`;
};

const rows = data("row-data");
const maps = data("map-data");
if (maps) {
  maps.nodes = maps.nodes.map((name) => maps.start + name + maps.end);
  for (const one of maps.maps.filter((map) => map.unit === "bytes")) {
    one.values = one.values.map((value) => (value === null ? null : value * 1024));
  }
}
const columns = rows ? Object.keys(rows) : [];
const cell = (row, name) => rows[name].texts[rows[name].codes[row]];
const count = rows ? rows.node.codes.length : 0;
const STEP = 200;
const state = { text: "", decision: "", sort: "", down: false, shown: STEP };

// A row matches if every word is in one of its cells.
function matching() {
  const words = state.text.toLowerCase().split(/\s+/).filter(Boolean);
  const hits = words.map((word) => columns.map((name) => rows[name].texts.map((text) => text.toLowerCase().includes(word))));
  const found = [];
  for (let row = 0; row < count; row += 1) {
    if (state.decision && cell(row, "decision") !== state.decision) continue;
    if (hits.every((of) => columns.some((name, at) => of[at][rows[name].codes[row]]))) found.push(row);
  }
  if (state.sort) {
    const column = rows[state.sort];
    const order = column.values || column.texts;
    const sign = state.down ? -1 : 1;
    const less = column.values ? (a, b) => a - b : (a, b) => a.localeCompare(b, "en", { numeric: true });
    found.sort((a, b) => sign * less(order[column.codes[a]], order[column.codes[b]]) || a - b);
  }
  return found;
}

function line(row, names) {
  const made = make("tr");
  for (const name of names) {
    const place = make("td", name === "amount" ? "amount" : "");
    if (name === "node" && cell(row, name)) {
      const link = make("button", "link", cell(row, name));
      link.onclick = () => showNode(cell(row, name));
      place.append(link);
    } else place.textContent = cell(row, name);
    made.append(place);
  }
  return made;
}

function draw() {
  const found = matching();
  const body = page.querySelector("#rows tbody");
  body.replaceChildren(...found.slice(0, state.shown).map((row) => line(row, columns)));
  page.getElementById("found").textContent = `${found.length.toLocaleString("en")} of ${count.toLocaleString("en")} rows`;
  page.getElementById("more").hidden = found.length <= state.shown;
  for (const head of page.querySelectorAll("#rows th")) {
    head.setAttribute("aria-sort", head.dataset.name === state.sort ? (state.down ? "descending" : "ascending") : "none");
  }
}

// Any table without embedded rows is sorted where it stands.
function sortPlain(table, at, down) {
  const body = table.tBodies[0];
  const value = (row) => row.cells[at].dataset.value ?? row.cells[at].textContent;
  const less = (a, b) => value(a).localeCompare(value(b), "en", { numeric: true });
  body.append(...[...body.rows].sort((a, b) => (down ? -1 : 1) * less(a, b)));
}

function bar(label, value, most, css) {
  const made = make("div", "use");
  const fill = make("i", css);
  fill.style.width = `${most ? (100 * value) / most : 0}%`;
  const track = make("span", "track");
  track.append(fill);
  made.append(make("span", "", label), track);
  return made;
}

function showNode(name) {
  const panel = page.getElementById("node");
  panel.replaceChildren(make("h2", "", name));
  const close = make("button", "", "Close");
  close.onclick = () => { panel.hidden = true; };
  panel.append(close);
  const mine = [];
  for (let row = 0; row < count; row += 1) if (cell(row, "node") === name) mine.push(row);
  const amount = (row) => rows.amount.values[rows.amount.codes[row]];
  for (const before of mine.filter((row) => cell(row, "decision") === "used-before")) {
    const same = (row) => cell(row, "object") === cell(before, "object") && cell(row, "scenario") === cell(before, "scenario");
    const after = mine.find((row) => cell(row, "decision") === "used-after" && same(row));
    if (after === undefined) continue;
    const most = Math.max(amount(before), amount(after));
    panel.append(make("h3", "", cell(before, "object")));
    panel.append(bar(`before ${cell(before, "amount")}`, amount(before), most, "b0"));
    panel.append(bar(`after ${cell(after, "amount")}`, amount(after), most, "b1"));
  }
  const names = columns.filter((column) => column !== "node" && column !== "scenario");
  const table = make("table"), head = make("tr");
  for (const column of names) head.append(make("th", column === "amount" ? "amount" : "", column));
  const top = make("thead"), body = make("tbody");
  top.append(head);
  body.append(...mine.slice(0, 500).map((row) => line(row, names)));
  table.append(top, body);
  const scroll = make("div", "scroll");
  scroll.append(table);
  panel.append(scroll);
  if (maps && maps.nodes.includes(name)) {
    const at = maps.nodes.indexOf(name);
    const said = maps.maps.map((one) => `${one.name} ${readable(one.values[at], one.unit)}`);
    panel.append(make("p", "notes", `In all: ${said.join("; ")}.`));
  }
  panel.hidden = false;
  panel.scrollIntoView();
  history.replaceState(null, "", `#node=${encodeURIComponent(name)}`);
}

// The map: a square per node, darker for a larger value by rank, so that one outlier does not pale the rest.
function heat() {
  const canvas = page.getElementById("map");
  const chosen = page.getElementById("measure");
  const sorted = page.getElementById("largest");
  const tip = page.getElementById("tip");
  maps.maps.forEach((one, at) => chosen.append(new Option(one.name, at)));
  let order = [], side = 0, across = 0;
  const paint = () => {
    const map = maps.maps[chosen.value || 0];
    const known = map.values.filter((value) => value !== null).sort((a, b) => a - b);
    const rank = new Map();
    known.forEach((value, at) => rank.set(value, known.length > 1 ? at / (known.length - 1) : 1));
    order = map.values.map((_, at) => at);
    if (sorted.checked) order.sort((a, b) => (map.values[b] ?? -Infinity) - (map.values[a] ?? -Infinity) || a - b);
    const width = canvas.parentElement.clientWidth, scale = window.devicePixelRatio || 1;
    side = Math.max(4, Math.min(28, Math.floor(Math.sqrt((width * Math.max(width * 0.5, 220)) / order.length))));
    across = Math.max(1, Math.floor(width / side));
    const height = Math.ceil(order.length / across) * side;
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    const style = getComputedStyle(page.documentElement);
    const ink = style.getPropertyValue("--c0").trim(), none = style.getPropertyValue("--line").trim();
    const gap = side > 6 ? 1 : 0.5;
    order.forEach((node, place) => {
      const value = map.values[node];
      context.globalAlpha = value === null ? 1 : 0.15 + 0.85 * rank.get(value);
      context.fillStyle = value === null ? none : ink;
      context.fillRect((place % across) * side, Math.floor(place / across) * side, side - gap, side - gap);
    });
    const at = (share) => readable(known[Math.round(share * (known.length - 1))], map.unit);
    page.getElementById("scale").textContent =
      `${known.length.toLocaleString("en")} of ${order.length.toLocaleString("en")} nodes; least ${at(0)}, median ${at(0.5)}, most ${at(1)}`;
  };
  const under = (event) => {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / side);
    return column < across ? order[Math.floor((event.clientY - box.top) / side) * across + column] : undefined;
  };
  canvas.onmousemove = (event) => {
    const node = under(event), map = maps.maps[chosen.value || 0];
    tip.hidden = node === undefined;
    if (node === undefined) return;
    tip.textContent = `${maps.nodes[node]}: ${readable(map.values[node], map.unit)}`;
    tip.style.left = `${Math.min(event.pageX + 14, page.documentElement.clientWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${event.pageY + 14}px`;
  };
  canvas.onmouseleave = () => { tip.hidden = true; };
  canvas.onclick = (event) => { const node = under(event); if (node !== undefined && rows) showNode(maps.nodes[node]); };
  chosen.onchange = sorted.onchange = window.onresize = paint;
  paint();
}

if (rows) {
  const box = page.getElementById("filter"), chosen = page.getElementById("decision");
  for (const name of [...rows.decision.texts].sort()) chosen.append(new Option(name, name));
  const change = (changes) => { Object.assign(state, { shown: STEP }, changes); draw(); };
  box.oninput = () => change({ text: box.value });
  chosen.onchange = () => change({ decision: chosen.value });
  page.getElementById("more").onclick = () => { state.shown += STEP; draw(); };
  for (const head of page.querySelectorAll("#rows th")) {
    head.dataset.name = head.textContent;
    head.onclick = () => change({ sort: head.dataset.name, down: state.sort === head.dataset.name && !state.down });
  }
  for (const card of page.querySelectorAll("[data-decision]")) {
    card.onclick = () => {
      chosen.value = card.dataset.decision;
      change({ decision: card.dataset.decision });
      page.getElementById("rows").scrollIntoView();
    };
  }
  for (const link of page.querySelectorAll("[data-words]")) {
    link.onclick = () => {
      box.value = link.dataset.words;
      chosen.value = "";
      change({ text: box.value, decision: "" });
      page.getElementById("rows").scrollIntoView();
    };
  }
  draw();
}
for (const head of page.querySelectorAll("#kinds th")) {
  head.onclick = () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    sortPlain(head.closest("table"), head.cellIndex, down);
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
  };
}
if (maps) heat();
if (rows && location.hash.startsWith("#node=")) showNode(decodeURIComponent(location.hash.slice(6)));
