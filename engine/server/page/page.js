"use strict";
const PARTS = ["node", "pods", "use", "eviction", "devices", "cpus", "cgroups", "probes", "images", "decisions"];
const GONE_AFTER = 40000; // the agent says each 15 s that it is there
const known = Object.fromEntries(PARTS.map((part) => [part, new Map()]));
const failures = {};
const opened = new Set();
const page = { paused: false, filter: "", heard: 0, source: null, due: new Set() };
const $ = (id) => document.getElementById(id);

// Elements are made of text alone, so what pods are called is never read as HTML.
function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name === "style") for (const [key, word] of Object.entries(value)) made.style.setProperty(key, word);
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function bytes(amount) {
  if (amount === null || amount === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0, size = Math.abs(amount);
  while (size >= 1024 && unit < 4) { size /= 1024; unit += 1; }
  return `${amount < 0 ? "−" : ""}${size >= 100 || unit === 0 ? Math.round(size) : size.toFixed(1)} ${units[unit]}`;
}
const counted = (amount) => (amount === null || amount === undefined ? "–" : amount.toLocaleString("en"));
const cores = (milli) => (milli === null || milli === undefined ? "–" : milli < 1000 ? `${milli}m` : (milli / 1000).toFixed(2));
function age(from) {
  if (from === null || from === undefined) return "–";
  const seconds = Math.max(0, Date.now() / 1000 - (typeof from === "string" ? Date.parse(from) / 1000 : from));
  if (seconds < 90) return `${Math.floor(seconds)} s`;
  if (seconds < 5400) return `${Math.floor(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86400)} d`;
}
function quantity(text) {
  const found = /^([\d.]+)(m|Ki|Mi|Gi|Ti|k|M|G|T)?$/.exec(text || "");
  if (!found) return null;
  const factor = { m: 1e-3, Ki: 1024, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, k: 1e3, M: 1e6, G: 1e9, T: 1e12 };
  return Number(found[1]) * (found[2] ? factor[found[2]] : 1);
}
function bar(share, mark) {
  const percent = (value) => `${Math.min(100, Math.max(0, value * 100))}%`;
  const kind = mark !== undefined && share >= mark ? "bad" : share > 0.85 ? "warn" : "";
  return el("div", { class: "bar", "aria-hidden": "true" },
    el("i", { class: kind, style: { width: percent(share) } }),
    mark === undefined ? null : el("b", { style: { left: percent(mark) } }));
}

// Names may be broken after their separators, rather than inside a word.
const breakable = (text) => text.split(/(?<=[/.:@-])/).flatMap((part, place) => (place ? [el("wbr"), part] : [part]));

const beside = (row, side) => {
  do row = row[side]; while (row && !row.hasAttribute("tabindex"));
  return row;
};

// A table whose rows are kept by key: what is focused, opened or selected stays so when the rest changes.
class Table {
  constructor(caption, columns) {
    this.columns = columns;
    this.lines = new Map();
    this.body = el("tbody");
    const heads = columns.map(([name, kind]) => el("th", { scope: "col", class: kind || false }, name));
    this.whole = el("div", { class: "scroll" },
      el("table", {}, el("caption", { class: "hidden" }, caption), el("thead", {}, el("tr", {}, ...heads)), this.body));
  }
  // rows: [{key, cells: [text or node or {text, as}], more: text}]
  show(rows, fresh) {
    const wanted = new Set(rows.map((row) => row.key));
    let focused = this.body.contains(document.activeElement) ? document.activeElement : null;
    for (const [key, line] of this.lines) {
      if (wanted.has(key)) continue;
      if (line.row === focused) focused = beside(line.row, "nextElementSibling") || beside(line.row, "previousElementSibling");
      line.row.remove();
      if (line.more) line.more.remove();
      this.lines.delete(key);
    }
    let at = this.body.firstChild;
    for (const row of rows) {
      let line = this.lines.get(row.key);
      if (!line) {
        line = this.line(row.key);
        if (fresh && this.shown) line.row.classList.add("new");
        this.lines.set(row.key, line);
      }
      this.fill(line, row);
      for (const each of [line.row, line.more]) {
        if (!each) continue;
        // Who comes next was only passed by the one before, which is moved when its turn comes.
        if (at && at !== each && at.nextSibling === each) at = each;
        if (each === at) at = at.nextSibling;
        else this.body.insertBefore(each, at);
      }
    }
    this.shown = true;
    if (focused && focused !== document.activeElement) focused.focus({ preventScroll: true });
  }
  line(key) {
    const row = el("tr", { tabindex: "0" }, ...this.columns.map(([, kind]) => el("td", { class: kind || false })));
    const line = { row, more: null, said: [], text: "" };
    const turn = () => {
      if (!line.text) return;
      opened.has(key) ? opened.delete(key) : opened.add(key);
      this.open(line, key);
    };
    row.addEventListener("animationend", () => row.classList.remove("new")); // or a column that comes back shows it again
    row.addEventListener("click", () => { if (!String(getSelection())) turn(); });
    row.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); turn(); }
      const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
      const to = step && beside(row, step);
      if (to) { event.preventDefault(); to.focus(); }
    });
    return line;
  }
  fill(line, { key, cells, more }) {
    cells.forEach((cell, place) => {
      const said = typeof cell === "object" && cell !== null ? cell : { text: cell };
      const told = `${said.as || ""}\u0000${said.text}`;
      if (line.said[place] === told) return;
      line.said[place] = told;
      const td = line.row.cells[place];
      td.replaceChildren(...breakable(said.text === null || said.text === undefined ? "–" : String(said.text)));
      td.className = [this.columns[place][1], said.as].filter(Boolean).join(" ");
    });
    line.text = more || "";
    if (line.text) line.row.setAttribute("aria-expanded", String(opened.has(key)));
    this.open(line, key);
  }
  open(line, key) {
    const wanted = opened.has(key) && line.text;
    if (line.text) line.row.setAttribute("aria-expanded", String(Boolean(wanted)));
    if (!wanted) { if (line.more) { line.more.remove(); line.more = null; } return; }
    if (!line.more) {
      line.more = el("tr", { class: "more" }, el("td", { colspan: String(this.columns.length) }));
      line.row.after(line.more);
    }
    if (line.more.firstChild.textContent !== line.text) line.more.firstChild.textContent = line.text;
  }
}

const matches = (...words) => !page.filter || words.join(" ").toLowerCase().includes(page.filter);
const state = { good: "good", warn: "warn", bad: "bad" };
const byName = (a, b) => (a[1].name < b[1].name ? -1 : 1);

const tables = {
  pods: new Table("Pods of this node", [["Pod", "w"], ["QoS", "wide"], ["Phase"], ["Ready", "n"], ["Restarts", "n wide"], ["CPU", "n"], ["Memory", "n"], ["Age", "n wide"]]),
  cgroups: new Table("Cgroups and their values", [["Group", "w"], ["Weight", "n wide"], ["CPU limit", "n wide"], ["Memory limit", "n"], ["Pids", "n wide"], ["CPU used", "n"], ["Memory used", "n"]]),
  probes: new Table("Probes", [["Container", "w"], ["Probe"], ["Result"], ["Run", "n wide"], ["Took", "n wide"], ["Late by", "n"], ["Times late", "n wide"], ["Each", "n wide"]]),
  images: new Table("Images", [["Image", "w"], ["Size", "n"], ["Used", "n wide"], ["By", "w wide"], ["Stays because", "w"]]),
  decisions: new Table("Decisions, the latest first", [["Time", "t"], ["What"], ["Outcome"], ["Pod", "w"], ["Why", "w wide"]]),
};

const draw = {
  node() {
    const who = known.node.get("who");
    if (!who) return;
    $("name").textContent = who.name;
    document.title = `${who.name} · Kubengine`;
    $("about").textContent = [who.version, who.runtime, `Linux ${who.kernel}`, who.os].filter(Boolean).join(" · ");
    const pills = (known.node.get("conditions") || []).map(({ type, status, reason }) => {
      const well = (type === "Ready") === (status === "True");
      if (type !== "Ready" && well) return null;
      return el("span", { class: `pill ${well ? "good" : "bad"}`, title: reason }, type === "Ready" && !well ? "NotReady" : type);
    });
    const failing = Object.entries(known.node.get("failing") || {});
    $("pills").replaceChildren(...pills.filter(Boolean),
      ...failing.map(([name, error]) => el("span", { class: "pill bad", title: error }, `${name} fails`)));
    draw.meters();
  },
  meters() {
    const who = known.node.get("who");
    if (!who) return;
    const [milli, mebibytes] = known.use.get("node") || [null, null];
    const cpu = quantity(who.capacity.cpu), memory = quantity(who.capacity.memory), most = quantity(who.capacity.pods);
    const meter = (value, words, share) => el("div", {}, el("b", {}, value), el("span", {}, words), bar(share || 0));
    const running = [...known.pods.values()].filter((pod) => pod.phase === "Running").length;
    const met = [...known.eviction.values()].filter((each) => each.distance !== null && each.distance < 0).length;
    $("meters").replaceChildren(
      meter(milli === null ? "–" : `${(milli / 10 / cpu).toFixed(milli / cpu < 100 ? 1 : 0)} %`, `of ${cpu} CPUs in use`, milli / 1000 / cpu),
      meter(bytes(mebibytes === null ? null : mebibytes * 2 ** 20), `of ${bytes(memory)} memory`, mebibytes * 2 ** 20 / memory),
      meter(`${running} / ${known.pods.size}`, `pods run; room for ${counted(most)}`, known.pods.size / most),
      meter(met ? String(met) : "none", met ? "thresholds are met" : "of the eviction thresholds is met", 0));
  },
  pods() {
    const rows = [...known.pods].filter(([, pod]) => matches(pod.name, pod.qos, pod.phase, pod.reason)).sort(byName)
      .map(([uid, pod]) => {
        const [milli, mebibytes] = known.use.get(uid) || [null, null];
        const well = pod.phase === "Running" ? (pod.ready === pod.of ? state.good : state.warn) : pod.phase === "Failed" ? state.bad : pod.phase === "Pending" ? state.warn : "soft";
        const containers = pod.containers.map((each) => `${each.name}: ${each.state}${each.why ? ` (${each.why})` : ""}${each.restarts ? `, ${each.restarts} restarts` : ""}, ${each.image}`);
        const about = [pod.message, `priority ${pod.priority}${pod.ip ? `, ${pod.ip}` : ""}`, ...containers, uid];
        return {
          key: uid, more: about.filter(Boolean).join("\n"),
          cells: [pod.name, pod.qos, { text: pod.leaving ? "Leaving" : pod.reason || pod.phase, as: well }, `${pod.ready}/${pod.of}`,
            { text: pod.restarts, as: pod.restarts ? state.warn : "" }, cores(milli), bytes(mebibytes === null ? null : mebibytes * 2 ** 20), age(pod.since)],
        };
      });
    tables.pods.show(rows, true);
    count("pods", rows.length, known.pods.size);
    note("pods", known.pods.size ? "" : "No pod is here.");
  },
  use() { draw.pods(); draw.cgroups(); draw.meters(); },
  eviction() {
    const amount = (each, value) => (each.counted ? counted(value) : bytes(value));
    const thresholds = [...known.eviction.values()].filter((each) => each.signal).map((each) => {
      const used = each.capacity ? 1 - each.available / each.capacity : 0;
      const near = each.distance === null ? "soft" : each.distance < 0 ? "bad" : each.distance < each.limit ? "warn" : "";
      const distance = each.distance === null ? "not measured" : each.distance < 0 ? `met by ${amount(each, -each.distance)}` : `${amount(each, each.distance)} away`;
      return el("div", { title: `${amount(each, each.available)} of ${amount(each, each.capacity)} available` },
        el("p", {}, el("span", {}, `${each.signal} < ${each.value}${each.grace ? ` for ${each.grace} s` : ""}`), el("span", { class: near }, distance)),
        bar(used, each.capacity && each.limit !== null ? 1 - each.limit / each.capacity : undefined));
    });
    const used = ({ usage, request }) => {
      if (usage === null) return "its usage is unknown";
      if (request === null) return usage === 1 ? "1 task" : `${counted(usage)} tasks`;
      return usage > request ? `uses ${bytes(usage)}, ${bytes(usage - request)} more than it requests` : `uses ${bytes(usage)} of ${bytes(request)} that it requests`;
    };
    const first = [...known.eviction.values()].filter((each) => each.resource).flatMap(({ resource, pods, spared }) => [
      el("h3", {}, `When ${resource} ${resource === "pids" ? "run" : "runs"} short, first to go`),
      el("ol", {}, ...pods.filter((each) => matches(each.pod, each.qos)).map((each) => el("li", {}, each.pod,
        el("span", { class: "soft" }, ` ${each.qos}, priority ${each.priority}, ${used(each)}`)))),
      spared ? el("p", { class: "holder" }, `${pods.length ? "" : "None of the first: "}${spared} critical ${spared === 1 ? "pod is" : "pods are"} passed over`) : null,
    ].filter(Boolean));
    replace("eviction", el("div", { class: "thresholds" }, ...thresholds), ...first);
    note("eviction", thresholds.length ? "" : "No thresholds are set.");
    draw.meters();
  },
  devices() {
    const drawn = [...known.devices].flatMap(([name, resource]) => {
      const nodes = new Map();
      for (const device of resource.devices) {
        const at = device.numa === null || !device.numa.length ? "no NUMA node" : `NUMA ${device.numa.join(", ")}`;
        nodes.set(at, [...(nodes.get(at) || []), device]);
      }
      const told = el("p", { class: "holder", "aria-live": "polite" });
      const cells = (devices) => devices.map((device) => {
        const words = `${device.id}: ${device.owners.length ? `held by ${device.owners.join(", ")}` : "free"}${device.health === "Healthy" ? "" : `, ${device.health}`}`;
        const say = () => { told.textContent = words; };
        const kind = device.health === "Healthy" ? (device.owners.length ? "held" : "") : "ill";
        return el("li", { class: kind || false, tabindex: "0", title: words, "aria-label": words, onfocus: say, onmouseenter: say });
      });
      const groups = [...nodes].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }))
        .map(([at, devices]) => el("div", {}, el("h4", {}, at), el("ul", { class: "cells" }, ...cells(devices))));
      const words = `${name}: ${resource.allocated} of ${resource.allocatable} held${resource.more ? `, ${resource.more} more devices not drawn` : ""}`;
      const away = resource.plugin === "connected" ? null : el("span", { class: "bad" }, " plugin is away");
      const holders = new Map();
      for (const device of resource.devices) for (const owner of device.owners) holders.set(owner, [...(holders.get(owner) || []), device.id]);
      const list = [...holders].filter(([owner]) => matches(owner, name)).map(([owner, ids]) => el("li", {}, owner, el("span", { class: "soft" }, ` ${ids.join(", ")}`)));
      return [el("h3", {}, words, away), el("div", { class: "numa" }, ...groups), told, list.length ? el("ol", {}, ...list) : null];
    });
    replace("devices", ...drawn.filter(Boolean));
    $("devices").classList.toggle("empty", !known.devices.size);
    note("devices", known.devices.size ? "" : "No device plugin has registered.");
  },
  cpus() {
    const settings = known.cpus.get("settings");
    const told = el("p", { class: "holder", "aria-live": "polite" });
    const holders = new Map();
    const cell = ([cpu, use, owner]) => {
      const words = `CPU ${cpu}: ${owner ? `exclusive to ${owner}` : use}`;
      const say = () => { told.textContent = words; };
      if (owner) holders.set(owner, [...(holders.get(owner) || []), cpu]);
      return el("li", { class: { held: "held", reserved: "kept", offline: "ill" }[use] || false, tabindex: "0", title: words, "aria-label": words, onfocus: say, onmouseenter: say });
    };
    const nodes = [...known.cpus.values()].filter((row) => row.caches).sort((a, b) => a.node - b.node).map((row) => el("div", {}, el("h4", {}, `NUMA ${row.node}`),
      ...row.caches.map(({ socket, cache, cores }) => el("div", { class: "cache", title: `socket ${socket}, cache ${cache}` },
        ...cores.map((cpus) => el("ul", { class: "cells core" }, ...cpus.map(cell)))))));
    const away = settings && settings.away.length ? el("div", {}, el("h4", {}, "offline"), el("ul", { class: "cells" }, ...settings.away.map((cpu) => cell([cpu, "offline", ""])))) : null;
    const list = [...holders].filter(([owner]) => matches(owner)).map(([owner, cpus]) => el("li", {}, owner, el("span", { class: "soft" }, ` CPUs ${cpus.sort((a, b) => a - b).join(", ")}`)));
    const words = settings ? [`policy ${settings.policy}`, `shared: ${settings.shared || "none"}`, settings.reserved ? `reserved: ${settings.reserved}` : "", settings.offline ? `offline: ${settings.offline}` : ""].filter(Boolean).join(" · ") : "";
    replace("cpus", ...[el("h3", {}, words), el("div", { class: "numa" }, ...nodes, ...(away ? [away] : [])), told, list.length ? el("ol", {}, ...list) : null].filter(Boolean));
    note("cpus", nodes.length ? "" : "This node does not describe its CPUs.");
  },
  cgroups() {
    const settings = known.cgroups.get("settings");
    const groups = [...known.cgroups].filter(([path]) => path !== "settings");
    const sums = (path) => groups.filter(([below, group]) => group.uid && below.startsWith(`${path}/`))
      .map(([, group]) => known.use.get(group.uid)).filter(Boolean)
      .reduce(([milli, memory], [a, b]) => [milli + (a || 0), memory + (b || 0)], [0, 0]);
    const first = (files, ...names) => names.map((name) => files[name] && [name, ...files[name]]).find(Boolean);
    const cell = (found, shown) => {
      if (!found) return "–";
      const [, actual, wanted] = found;
      return wanted === null ? shown(actual, found[0]) : { text: `${shown(actual, found[0])} ≠ ${shown(wanted, found[0])}`, as: "bad" };
    };
    const limit = (value) => (value === null ? "gone" : value === "max" || value === "-1" || Number(value) > 2 ** 60 ? "max" : bytes(Number(value)));
    const rows = groups.filter(([path, group]) => matches(path, group.pod, group.qos)).sort(([a], [b]) => (a < b ? -1 : 1)).map(([path, group]) => {
      const depth = settings && settings.root ? path.slice(settings.root.length).split("/").length - 1 : 0;
      const [milli, mebibytes] = group.uid ? known.use.get(group.uid) || [null, null] : sums(path);
      const quota = (value, name) => {
        if (value === null) return "gone";
        const [used, period] = name === "cpu.max" ? value.split(" ") : [value, (group.files["cpu.cfs_period_us"] || ["100000"])[0]];
        return used === "max" || used === "-1" ? "max" : (Number(used) / Number(period || 100000)).toFixed(2);
      };
      const plain = (value) => (value === null ? "gone" : value);
      const name = group.pod || path.split("/").pop() || "/";
      return {
        key: `cgroup ${path}`,
        cells: [`${"\u00a0".repeat(4 * depth)}${name}`, cell(first(group.files, "cpu.weight", "cpu.shares"), plain),
          cell(first(group.files, "cpu.max", "cpu.cfs_quota_us"), quota), cell(first(group.files, "memory.max", "memory.limit_in_bytes"), limit),
          cell(first(group.files, "pids.max"), plain), cores(milli), bytes(mebibytes === null ? null : mebibytes * 2 ** 20)],
        more: [path, ...Object.entries(group.files).map(([file, [actual, wanted]]) => `${file} ${plain(actual)}${wanted === null ? "" : ` ≠ ${wanted}`}`)].join("\n"),
      };
    });
    tables.cgroups.show(rows, false);
    count("cgroups", rows.length, groups.length, settings && settings.enabled ? `v${settings.version}, ${settings.driver}` : "");
    note("cgroups", groups.length ? "" : "This node keeps no cgroups.");
  },
  probes() {
    const wrong = (probe) => (probe.result === "failure" ? 0 : probe.last === "failure" ? 1 : 2);
    const rows = [...known.probes].filter(([, probe]) => matches(probe.pod, probe.container, probe.type, probe.result))
      .sort(([a, x], [b, y]) => wrong(x) - wrong(y) || (`${x.pod}${a}` < `${y.pod}${b}` ? -1 : 1)).map(([key, probe]) => ({
        key: `probe ${key}`,
        cells: [`${probe.pod}/${probe.container}`, `${probe.type} ${probe.kind}`, { text: probe.result, as: probe.result === "success" ? "good" : probe.result === "failure" ? "bad" : "soft" },
          `${probe.streak}/${probe.threshold}`, probe.took === null ? "–" : `${probe.took} ms`,
          { text: probe.lateness === null ? "–" : `${probe.lateness} ms`, as: probe.lateness > 100 ? "warn" : "" }, { text: probe.late, as: probe.late ? "soft" : "" }, `${probe.period} s`],
        more: [probe.target, probe.output].filter(Boolean).join("\n"),
      }));
    tables.probes.show(rows, false);
    count("probes", rows.length, known.probes.size);
    note("probes", known.probes.size ? "" : "No container has a probe.");
  },
  images() {
    const settings = known.images.get("settings");
    const images = [...known.images].filter(([key]) => key !== "settings");
    const rows = images.filter(([, image]) => matches(...image.names, ...image.users, image.stays || ""))
      .sort(([, a], [, b]) => b.size - a.size).map(([key, image]) => ({
        key: `image ${key}`,
        cells: [image.names[0] || key, bytes(image.size), image.users.length ? "now" : image.used === null ? "never" : `${age(image.used)} ago`,
          image.users.join(", ") + (image.more ? ` and ${image.more} more` : "") || "–", image.stays ? image.stays : { text: "may go", as: "warn" }],
        more: [...image.names, key, `first seen ${age(image.seen)} ago`].join("\n"),
      }));
    tables.images.show(rows, false);
    const total = bytes(images.reduce((sum, [, image]) => sum + image.size, 0));
    count("images", rows.length, images.length, settings ? `${total}; collected from ${settings.highThresholdPercent} % of the disk down to ${settings.lowThresholdPercent} %, ${settings.order} first` : total);
    note("images", images.length ? "" : "The runtime has no image.");
  },
  decisions() {
    const rows = [...known.decisions].sort(([a], [b]) => b - a)
      .filter(([, each]) => matches(each.pod || "", each.kind, each.outcome, each.reason || "")).map(([number, each]) => ({
        key: `decision ${number}`,
        cells: [new Date(each.time * 1000).toLocaleTimeString("en-GB"), each.kind,
          { text: each.outcome, as: ["failed", "refused", "evicted", "preempted"].includes(each.outcome) ? "bad" : "" },
          (each.pod || "–") + (each.container ? `/${each.container}` : ""), each.reason || "–"],
        more: [each.reason, JSON.stringify(each.inputs || {}, null, 1)].filter(Boolean).join("\n"),
      }));
    tables.decisions.show(rows, true);
    count("decisions", rows.length, known.decisions.size);
    note("decisions", known.decisions.size ? "" : "Nothing was decided yet.");
  },
};

function count(part, shown, all, words) {
  const number = shown === all ? counted(all) : `${counted(shown)} of ${counted(all)}`;
  $(part).querySelector("small").textContent = words ? `${number} · ${words}` : number;
}
function note(part, words) {
  const place = $(part).querySelector(".note");
  place.textContent = words;
  place.hidden = !words;
  if (tables[part]) tables[part].whole.hidden = Boolean(words);
}
// What is focused in a part that is drawn anew is focused again.
function replace(part, ...children) {
  const place = $(part).querySelector(".drawn");
  const label = place.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  place.replaceChildren(...children);
  if (label) { const again = [...place.querySelectorAll("[aria-label]")].find((each) => each.getAttribute("aria-label") === label); if (again) again.focus(); }
}

function later(part) {
  page.due.add(part);
  if (page.due.size === 1) requestAnimationFrame(() => { const due = [...page.due]; page.due.clear(); due.forEach((each) => draw[each]()); });
}
const all = () => PARTS.forEach((part) => { if (known[part].size) later(part); });

function heard() { page.heard = Date.now(); says("live"); }
function says(word) {
  const place = $("state");
  if (place.textContent !== word) { place.textContent = word; place.className = word === "live" ? "live" : ""; }
}
function connect() {
  if (page.source) page.source.close();
  const source = new EventSource("/live");
  page.source = source;
  source.addEventListener("begin", () => { PARTS.forEach((part) => known[part].clear()); heard(); });
  source.onerror = () => says("the agent is away; trying again");
  source.addEventListener("failure", (event) => {
    const { part, error } = JSON.parse(event.data);
    failures[part] = error;
    const place = $(part) && $(part).querySelector(".error");
    if (place) { place.textContent = error; place.hidden = !error; }
    heard();
  });
  for (const part of PARTS) source.addEventListener(part, (event) => {
    const { rows = {}, gone = [] } = JSON.parse(event.data);
    for (const [key, row] of Object.entries(rows)) known[part].set(key, row);
    for (const key of gone) known[part].delete(key);
    heard();
    later(part);
  });
}
function pause() {
  page.paused = !page.paused;
  $("pause").setAttribute("aria-pressed", String(page.paused));
  $("pause").textContent = page.paused ? "Go on" : "Pause";
  if (page.paused) { page.source.close(); says("paused"); } else connect();
}
const THEMES = ["system", "light", "dark"];
function theme(chosen) {
  document.documentElement.dataset.theme = chosen === "system" ? "" : chosen;
  $("theme").textContent = `Theme: ${chosen}`;
  try { localStorage.setItem("theme", chosen); } catch { /* a browser may keep nothing */ }
}
function nextTheme() {
  const now = document.documentElement.dataset.theme || "system";
  theme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
}
function jump(part) {
  const place = $(part);
  place.scrollIntoView({ block: "start" });
  (place.querySelector("tr[tabindex], li[tabindex]") || place.querySelector("h2")).focus({ preventScroll: true });
}

const sections = [...document.querySelectorAll("main > section")];
sections.forEach((section, place) => {
  const title = section.dataset.title, id = `${section.id}-title`;
  section.setAttribute("aria-labelledby", id);
  section.append(el("h2", { id, tabindex: "-1" }, title, el("small")), el("p", { class: "error", role: "alert", hidden: true }),
    el("p", { class: "note" }, "…"), tables[section.id] ? tables[section.id].whole : el("div", { class: "drawn" }));
  $("jumps").append(el("a", { href: `#${section.id}`, onclick: (event) => { event.preventDefault(); jump(section.id); } }, el("kbd", {}, String(place + 1)), title));
});
$("pause").addEventListener("click", pause);
$("theme").addEventListener("click", nextTheme);
$("help").addEventListener("click", () => $("keys").showModal());
$("find").addEventListener("input", () => { page.filter = $("find").value.trim().toLowerCase(); all(); });
$("find").addEventListener("keydown", (event) => { if (event.key === "Escape") { $("find").value = ""; page.filter = ""; all(); $("find").blur(); } });
document.addEventListener("keydown", (event) => {
  if (event.target === $("find") || event.ctrlKey || event.metaKey || event.altKey || $("keys").open) return;
  const act = { "/": () => $("find").focus(), p: pause, t: nextTheme, "?": () => $("keys").showModal() }[event.key];
  const section = sections[Number(event.key) - 1];
  if (act) { event.preventDefault(); act(); } else if (section) jump(section.id);
});
setInterval(() => {
  if (page.paused || document.hidden) return;
  if (page.heard && Date.now() - page.heard > GONE_AFTER) says("the agent has not been heard for a while");
  ["pods", "images"].forEach((part) => { if (known[part].size) later(part); });
}, 5000);
// Who looks elsewhere lets the agent rest.
document.addEventListener("visibilitychange", () => {
  if (page.paused) return;
  if (document.hidden) page.source.close(); else connect();
});
let kept = "system";
try { kept = localStorage.getItem("theme") || "system"; } catch { /* a browser may keep nothing */ }
theme(THEMES.includes(kept) ? kept : "system");
connect();
