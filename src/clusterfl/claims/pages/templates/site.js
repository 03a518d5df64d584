"use strict";
(async () => {
const bytes = Uint8Array.from(atob(document.getElementById("data").textContent), (character) => character.charCodeAt(0));
const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
const data = JSON.parse(await new Response(unpacked).text());
const claims = new Map(data.claims.map((claim) => [claim.claim_id, claim]));
const dash = "–", dark = matchMedia("(prefers-color-scheme: dark)");
const NAMES = { accuracy: "accuracy (%)", loss: "loss", ari: "adjusted Rand index" };
let shown = [];  // the plots of the view, drawn again when the width or the colours change

// Everything from data becomes a text node: no name can be markup.
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}
const link = (view, text) => el("a", { href: "#" + view }, text);
const path = (...parts) => parts.map((part) => encodeURIComponent(part)).join("/");
const claimLink = (id, text) => link("claim/" + encodeURIComponent(id), text ?? id);
const verdictTag = (name) => el("span", { class: "v v-" + name.replaceAll(" ", "-") }, `${data.marks[name] ?? ""} ${name}`.trim());
function number(value, digits = 5) {
  return value === null || value === undefined ? dash : String(Number(value.toPrecision(digits))).replace("-", "−");
}

// Copies and downloads
const button = (name, act) => {
  const node = el("button", { type: "button" }, name);
  node.addEventListener("click", act);
  return node;
};
// Copies a text; where the browser refuses (some do for files), shows it in a field, selected, to be copied by hand.
function copier(name, say) {
  const said = el("span", { role: "status", class: "note" });
  const node = button(name, async () => {
    const value = say();
    try {
      await navigator.clipboard.writeText(value);
      said.textContent = "copied";
    } catch {
      const field = el("textarea", { readonly: "", rows: "3", "aria-label": name });
      field.value = value;
      said.replaceChildren("this browser doesn't let a page copy; copy it from here: ", field);
      field.select();
    }
  });
  return el("span", { class: "copier" }, node, " ", said);
}
function save(name, content) {
  const url = URL.createObjectURL(new Blob([content], { type: "text/csv" }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
// `names` are the columns of claims.parquet or orderings.parquet: what the page adds to rows stays out.
function csv(names, rows) {
  const cell = (value) => (/[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  return [names, ...rows.map((row) => names.map((name) => String(row[name] ?? "")))].map((line) => line.map(cell).join(",") + "\n").join("");
}

// Searchable tables
const numeric = (a, b) => (a ?? -Infinity) - (b ?? -Infinity);
const MORE = { title: "columns that don't fit", titleFormatter: (c) => el("span", { class: "hint" }, c.getValue()), formatter: "responsiveCollapse", width: 30, minWidth: 30, headerSort: false, responsive: 0 };
const CLAIMS = [
  MORE,
  { title: "number", field: "claim_id", minWidth: 180, widthGrow: 4, responsive: 0, variableHeight: true, formatter: (c) => { c.getElement().classList.add("id"); return el("div", {}, claimLink(c.getValue()), el("span", { class: "both" }, `printed ${c.getData().printed_text}, ours ${c.getData().ours_text}`)); } },
  { title: "verdict", field: "verdict", width: 158, responsive: 1, formatter: (c) => verdictTag(c.getValue()) },
  { title: "printed", field: "printed", width: 125, hozAlign: "right", responsive: 2, sorter: numeric, formatter: (c) => text(c.getData().printed_text) },
  { title: "ours", field: "ours", width: 125, hozAlign: "right", responsive: 2, sorter: numeric, formatter: (c) => text(c.getData().ours_text) },
  { title: "difference", field: "difference", width: 125, hozAlign: "right", responsive: 5, sorter: numeric, formatter: (c) => text(number(c.getValue(), 3)) },
  { title: "seeds", field: "seeds", width: 88, hozAlign: "right", responsive: 6, sorter: numeric, formatter: (c) => text(c.getValue() || dash) },
  { title: "also accepts", field: "also_accepts", width: 130, responsive: 9, tooltip: (_, c) => text(c.getValue() ?? ""), formatter: (c) => text((c.getValue() ?? "").replaceAll("|", ", ") || dash) },
  { title: "guesses", field: "guesses", width: 105, hozAlign: "right", responsive: 9, sorter: numeric, formatter: (c) => text(c.getValue() || dash) },
  { title: "where", field: "where", width: 110, responsive: 7, tooltip: (_, c) => text(c.getValue()) },
  { title: "metric", field: "metric", width: 110, responsive: 8 },
  { title: "reason", field: "reason", minWidth: 220, widthGrow: 4, responsive: 4, tooltip: (_, c) => text(c.getValue() ?? "") },
];
const ORDERINGS = [
  MORE,
  { title: "statement", field: "statement", minWidth: 170, widthGrow: 3, responsive: 0, formatter: "textarea" },
  { title: "verdict", field: "verdict", width: 125, responsive: 1, formatter: (c) => el("span", { class: "v o-" + c.getData().kind.replaceAll(" ", "-") }, c.getValue()) },
  { title: "holds in seeds", field: "seeds_holding", width: 160, hozAlign: "right", responsive: 3, sorter: numeric, formatter: (c) => text(c.getData().seeds ? `${c.getValue()} of ${c.getData().seeds}` : dash) },
  { title: "paper", field: "paper", width: 105, responsive: 4, formatter: (c) => text(data.titles[c.getValue()]) },
  { title: "scale", field: "scale", width: 80, responsive: 1 },
  { title: "on print", field: "on_print", width: 130, responsive: 2 },
  { title: "where", field: "where", minWidth: 120, widthGrow: 1, responsive: 7, formatter: "textarea" },
  { title: "in symbols", field: "left", minWidth: 150, widthGrow: 2, responsive: 8, variableHeight: true, formatter: (c) => { const d = c.getData(); c.getElement().style.whiteSpace = "pre-wrap"; return el("code", {}, `${d.left} ${d.relation} ${d.right}`); } },
  { title: "reason", field: "reason", minWidth: 150, widthGrow: 2, responsive: 6, formatter: "textarea" },
];
const text = (value) => document.createTextNode(String(value));
const LISTS = {
  claims: { rows: data.claims, columns: CLAIMS, menus: ["paper", "verdict", "method", "table", "cell", "metric", "scale"], of: "numbers" },
  orderings: { rows: data.orderings, columns: ORDERINGS, menus: ["paper", "scale", "verdict"], of: "orderings" },
};

// Keys for what Tabulator leaves to the mouse: sorting by a column, opening a row. A grid's children must be row groups.
function keyboard(place, one) {
  place.querySelector(".tabulator-tableholder").setAttribute("role", "rowgroup");
  place.querySelector(".tabulator-tableholder").setAttribute("aria-label", one.of);
  place.querySelector(".tabulator-table").setAttribute("role", "presentation");
  for (const head of place.querySelectorAll(".tabulator-col.tabulator-sortable")) head.setAttribute("tabindex", "0");
  place.addEventListener("keydown", (event) => {
    if ((event.key === "Enter" || event.key === " ") && event.target.matches(".tabulator-col.tabulator-sortable, .tabulator-responsive-collapse-toggle")) {
      event.preventDefault();
      event.target.click();
    }
  });
}

function list(name, asked) {
  const one = LISTS[name], tools = document.getElementById(name + "-tools");
  const special = { verdict: (row) => row.kind ?? row.verdict, table: (row) => row.where, cell: (row) => `${row.dataset}/${row.setting}` };
  const value = (row, key) => (special[key] ? special[key](row) : row[key]) ?? "";
  if (!one.table) {
    one.inputs = { search: el("input", { type: "search", "aria-label": "search", placeholder: "words in any column" }) };
    tools.append(el("label", {}, "search", one.inputs.search));
    for (const key of one.menus) {
      const menu = el("select", {}, el("option", { value: "" }, "all"));
      for (const option of [...new Set(one.rows.map((row) => value(row, key)))].filter(Boolean).sort((a, b) => a.localeCompare(b, "en", { numeric: true })))
        menu.append(el("option", { value: option }, key === "paper" ? data.titles[option] : option));
      one.inputs[key] = menu;
      tools.append(el("label", {}, key === "cell" ? "dataset/setting" : key, menu));
    }
    const keep = () => {
      const words = one.inputs.search.value.toLowerCase().split(/\s+/).filter(Boolean);
      const asked = new URLSearchParams(Object.entries(one.inputs).map(([key, input]) => [key, input.value]).filter(([, value]) => value));
      history.replaceState(null, "", "#" + name + (asked.size ? "?" + asked : ""));
      const fits = (row, but) => one.menus.every((key) => key === but || !one.inputs[key].value || value(row, key) === one.inputs[key].value);
      const found = (row) => fits(row) && words.every((word) => row.haystack.includes(word));
      for (const key of one.menus) {  // a menu offers what the others leave
        const there = new Set(one.rows.filter((row) => fits(row, key)).map((row) => value(row, key)));
        for (const option of one.inputs[key].options) option.disabled = option.hidden = option.value && !option.selected && !there.has(option.value);
      }
      one.table.setFilter(found);
      document.getElementById(name + "-count").textContent = `${one.rows.filter(found).length} of ${one.rows.length} ${one.of}`;
    };
    for (const row of one.rows)
      row.haystack = Object.values(row).filter((item) => typeof item === "string").join(" ").toLowerCase() + " " + data.titles[row.paper].toLowerCase();
    for (const input of Object.values(one.inputs)) input.addEventListener("input", () => one.ready.then(keep));
    one.table = new Tabulator("#" + name + "-table", {
      data: one.rows, columns: one.columns, index: "claim_id", height: Math.max(360, innerHeight - 190) + "px",
      layout: "fitColumns", responsiveLayout: "collapse", responsiveLayoutCollapseStartOpen: false, placeholder: "nothing found", columnDefaults: { headerTooltip: true },
      rowFormatter: (row) => {
        const more = row.getElement().querySelector(".tabulator-responsive-collapse-toggle");
        if (more) for (const [key, value] of Object.entries({ tabindex: "0", role: "button", "aria-label": "more of this row" })) more.setAttribute(key, value);
      },
    });
    one.ready = new Promise((done) => one.table.on("tableBuilt", done));
    one.ready.then(() => keyboard(document.getElementById(name + "-table"), one));
    one.keep = keep;
    document.getElementById(name + "-take").append(
      button("CSV of the rows shown", () => one.ready.then(() => save(name + ".csv", csv(data.columns[name], one.table.getData("active"))))),
      copier("Copy a link to this view", () => location.href));
  }
  one.ready.then(() => {
    if (asked.size) for (const [key, input] of Object.entries(one.inputs)) input.value = asked.get(key) ?? "";
    one.table.redraw(true);
    one.keep();
  });
}

// Curves
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// Okabe and Ito's palette; of blue, and black, lighter forms on a dark ground.
const palette = () => (dark.matches ? ["#7CC4F0", "#F3A15F", "#33C79A", "#E29CC4", "#F0E442", "#C4C4BE"] : ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8A6D00", "#000000"]);
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
// The i-th line's colour, one of `count` from `first` on, and its dash: four times as many looks as there are colours.
const look = (i, first, count) => ({ colour: first + (i % count), dash: i + Math.floor(i / count) });

// A piece of a line as it is drawn.
function swatch(colour, line) {
  const canvas = el("canvas", { width: "72", height: "12", "aria-hidden": "true" }), ctx = canvas.getContext("2d");
  ctx.scale(2, 2);
  ctx.strokeStyle = colour; ctx.lineWidth = line.width; ctx.setLineDash(DASHES[line.dash % 4]);
  ctx.beginPath(); ctx.moveTo(0, 3); ctx.lineTo(36, 3); ctx.stroke();
  return canvas;
}

// One plot: `lines` are {name, curve, colour, dash, width, band}, `marks` printed points, `vertical` a number of rounds.
function plot(place, title, lines, marks = [], vertical = null) {
  const holder = el("div", { class: "plot" }), area = el("div", { role: "slider", tabindex: "0", "aria-label": title + "; arrow keys read the rounds", "aria-valuemin": "0", "aria-valuemax": "0", "aria-valuenow": "0" }), read = el("p", { class: "readout" });
  const legend = el("ul", { class: "legend" });
  holder.append(el("p", { class: "title" }, title), area, read, legend);
  place.append(holder);
  const draw = () => {
    area.replaceChildren();
    legend.replaceChildren();
    const colours = palette(), x = [...new Set(lines.flatMap((line) => line.curve[0]))].sort((a, b) => a - b);
    const series = [{}], columns = [x], bands = [], names = [], soft = css("--soft"), grid = css("--line");
    for (const line of lines) {
      const at = new Map(line.curve[0].map((round, i) => [round, i]));
      const column = (k) => x.map((round) => (at.has(round) ? line.curve[k][at.get(round)] : null));
      const colour = colours[line.colour];
      if (line.band) {
        series.push({ stroke: colour + "55", width: 1, points: { show: false }, spanGaps: true }, { stroke: colour + "55", width: 1, points: { show: false }, spanGaps: true });
        columns.push(column(3), column(2));
        bands.push({ series: [series.length - 2, series.length - 1], fill: colour + "33" });
      }
      series.push({ label: line.name, stroke: colour, width: line.width, dash: DASHES[line.dash % 4], points: { show: x.length < 3 }, spanGaps: true });
      columns.push(column(1));
      names.push({ end: line.curve[1].findLast((value) => value !== null), node: el("li", {}, swatch(colour, line), line.name, " ") });
      names.at(-1).node.append(el("b", {}, number(names.at(-1).end, 4)), line.band ? ", mean and range of the seeds" : "");
    }
    legend.append(...names.sort((a, b) => b.end - a.end).map((name) => name.node));  // as the lines end, the highest first
    if (marks.length) {
      const key = el("span", { class: "mark" }, "◇"); key.style.color = css("--differs");
      legend.append(el("li", {}, key, "printed, with its standard deviation; ◆ this number"));
    }
    if (vertical !== null) legend.append(el("li", {}, `dotted vertical line: printed, ${number(vertical)} rounds`));
    const values = [...columns.slice(1).flat(), ...marks.flatMap((mark) => [mark.y - (mark.std ?? 0), mark.y + (mark.std ?? 0)])].filter((value) => value !== null);
    const low = Math.min(...values), high = Math.max(...values), pad = (high - low || 1) * 0.06;
    const right = Math.max(x[x.length - 1], ...marks.map((mark) => mark.x), vertical ?? 0);
    const axis = { stroke: soft, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", labelSize: 18 };
    const over = (u) => {
      const { ctx } = u, scale = devicePixelRatio;
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = css("--differs");
      ctx.lineWidth = 1.6 * scale;
      for (const mark of marks) {
        const [px, py, r] = [u.valToPos(mark.x, "x", true), u.valToPos(mark.y, "y", true), (mark.own ? 7 : 5) * scale];
        if (mark.std) { ctx.beginPath(); ctx.moveTo(px, u.valToPos(mark.y - mark.std, "y", true)); ctx.lineTo(px, u.valToPos(mark.y + mark.std, "y", true)); ctx.stroke(); }
        ctx.beginPath(); ctx.moveTo(px, py - r); ctx.lineTo(px + r, py); ctx.lineTo(px, py + r); ctx.lineTo(px - r, py); ctx.closePath();
        if (mark.own) ctx.fill(); else { ctx.fillStyle = css("--page"); ctx.fill(); ctx.fillStyle = css("--differs"); }
        ctx.stroke();
      }
      if (vertical !== null) {
        const px = u.valToPos(vertical, "x", true);
        ctx.setLineDash([3 * scale, 3 * scale]); ctx.beginPath(); ctx.moveTo(px, u.bbox.top); ctx.lineTo(px, u.bbox.top + u.bbox.height); ctx.stroke();
      }
      ctx.restore();
    };
    const drawn = new uPlot({
      width: Math.min(holder.clientWidth || 600, 900), height: 300, series, bands, legend: { show: false },
      scales: { x: { time: false, range: [Math.min(0, x[0]), right * 1.03 || 1] }, y: { range: [low - pad, high + pad] } },
      axes: [{ ...axis, label: "round" }, { ...axis, size: 58 }], cursor: { drag: { x: true, y: false } },
      hooks: { draw: [over], setCursor: [(u) => {
        const i = u.cursor.idx;
        const said = i === null || i === undefined ? "" : `round ${x[i]}: ` + series.map((one, k) => (one.label && columns[k][i] !== null ? `${one.label} ${number(columns[k][i])}` : "")).filter(Boolean).join(", ");
        read.textContent = said;
        area.setAttribute("aria-valuenow", String(x[i] ?? x[0]));
        area.setAttribute("aria-valuetext", said || "no round");
      }] },
    }, columns, area);
    area.setAttribute("aria-valuemin", String(x[0]));
    area.setAttribute("aria-valuemax", String(x[x.length - 1]));
    // As the mouse reads a round, so do the arrow keys, Home and End.
    area.onkeydown = (event) => {
      const last = x.length - 1, at = drawn.cursor.idx ?? -1;
      const to = { ArrowLeft: at - 1, ArrowDown: at - 1, ArrowRight: at + 1, ArrowUp: at + 1, Home: 0, End: last }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      drawn.setCursor({ left: drawn.valToPos(x[Math.min(last, Math.max(0, to))], "x"), top: drawn.over.clientHeight / 2 });
    };
  };
  draw();
  shown.push(draw);
}

function federation(place, key) {
  const methods = Object.entries(data.curves[key] ?? {});
  place.replaceChildren();
  for (const measure of Object.keys(NAMES)) {
    const lines = methods.filter(([, curve]) => curve[measure]).map(([name, curve], i) => ({ name, curve: curve[measure], ...look(i, 0, 6), width: 1.6, band: false }));
    if (lines.length) plot(place, NAMES[measure] + " by round, mean over seeds", lines);
  }
  if (!place.childElementCount) place.append(el("p", {}, "There are no runs of this federation."));
}

// The page of one number
function claim(place, id) {
  const row = claims.get(id);
  place.replaceChildren();
  if (!row) {
    place.append(el("h2", {}, "No such number"), el("p", {}, `No number is named ${id}; look for it in the `, link("claims", "list"), "."));
    return;
  }
  const run = data.runs[`${row.study}/${row.federation}/${row.our_method}`];
  const facts = el("dl", { class: "facts" });
  const fact = (name, ...value) => value.some((item) => item || item === 0) && facts.append(el("dt", {}, name), el("dd", {}, ...value));
  place.append(el("p", { class: "up" }, link("claims", "Numbers")), el("h2", {}, id));
  const numbers = el("div", { class: "numbers" }, el("div", {}, el("b", { id: "printed" }, row.printed_text), "printed"),
    el("div", {}, el("b", { id: "ours" }, row.ours_text), row.seeds ? `ours, mean of ${row.seeds} seed${row.seeds > 1 ? "s" : ""}` : "ours"));
  if (row.difference !== null && row.difference !== undefined) numbers.append(el("div", {}, el("b", {}, number(row.difference, 3)), "ours − printed" + (row.standardised !== null && row.standardised !== undefined ? `, ${number(Math.abs(row.standardised), 2)} joint standard errors` : "")));
  place.append(numbers, el("p", {}, verdictTag(row.verdict), ": " + data.meanings[row.verdict] + "."));
  fact("reason", row.reason);
  fact("also accepts", row.also_accepts && `the printed number of ${row.also_accepts.replaceAll("|", ", ")}: by the same rule ours doesn't differ from it`);
  fact("guesses", row.guesses ? `${row.guesses} settings of the run are in neither text nor code` : "");
  fact("printed in", link("table/" + path(row.paper, row.table), `${data.titles[row.paper]}, ${row.where}`));
  fact("quantity", `${row.metric}, ${row.at === "final" ? "final" : "iteration " + row.at}; ${row.dataset}, ${row.setting}`);
  fact("method", link("method/" + path(row.method), row.method), row.our_method && row.our_method !== row.method ? ` (ours: ${row.our_method})` : "");
  fact("read as", row.read);
  fact("note", row.note);
  if (row.study) {
    fact("study", `${row.study}, scale ${row.scale}, profile ${row.profile}`);
    fact("federation", link("federation/" + path(row.study, row.federation), row.federation));
    fact("seed by seed", (row.values ?? "").replaceAll(/\d+\.\d{5,}/g, (value) => String(Number(Number(value).toPrecision(6)))));
    const many = (text) => (text ?? "").split("|").filter(Boolean).join(", ");
    fact("read from", many(row.origin));
    fact("made on", many([row.processor, row.branch && `branch ${many(row.branch)}`].filter(Boolean).join("|")));
    fact("commit", many(row.commit));
  }
  place.append(facts);
  const own = data.curves[`${row.study}/${row.federation}`] ?? {};
  const wanted = own[row.our_method]?.[row.curve] ? row.curve : ["accuracy", "loss"].find((name) => own[row.our_method]?.[name]);
  if (wanted) {
    place.append(el("h3", { id: "curve" }, "Over the rounds"));
    const others = Object.entries(own).filter(([name, curve]) => name !== row.our_method && curve[wanted]).map(([name, curve], i) => ({ name, curve: curve[wanted], ...look(i, 2, 4), width: 1, band: false }));
    const marks = data.claims.filter((other) => other.study === row.study && other.federation === row.federation && other.our_method === row.our_method && other.curve === wanted && other.round && other.printed !== null && other.printed !== undefined)
      .map((other) => ({ x: other.round, y: other.printed, std: other.printed_std, own: other === row })).sort((a, b) => a.own - b.own);
    plot(place, `${NAMES[wanted]} by round, study ${row.study}, ${row.federation}`,
      [...others, { name: row.our_method, curve: own[row.our_method][wanted], colour: 0, dash: 0, width: 2.4, band: true }], marks, row.curve === wanted ? row.line ?? null : null);
    if (row.score) place.append(el("p", { class: "note" }, "The curves show the study's own score; this number is of another one, see “read as”."));
    if (!row.round && !row.line) place.append(el("p", { class: "note" }, `${row.metric} has no curve of its own; ${wanted} is shown.`));
  }
  if (run) {
    place.append(el("h3", {}, "Partition"));
    for (const part of run.partitions) place.append(el("p", {}, `seed ${part.seed}: `, el("code", {}, part.digest)));
    const commands = [...run.commands, row.command], settings = run.settings + (row.score || run.score);
    const others = run.seeds.slice(1).join(", ");
    place.append(el("h3", {}, "Commands"), copier("Copy the commands", () => commands.join("\n")),
      el("p", {}, `Seed ${run.seeds[0]}, stage by stage; clusterfl run ${others ? `does the same for ${run.seeds.length > 2 ? "seeds" : "seed"} ${others} and ` : ""}keeps the settings beside the results, so that clusterfl claims can print the number. Afterwards clusterfl evidence ${row.study} --to FOLDER stores the runs' numbers in small files.${run.trial ? ` Chosen by validation score: ${run.trial}.` : ""}`),
      el("pre", { class: "wrap", id: "commands", tabindex: "0", role: "group", "aria-label": "Commands" }, commands.join("\n")), el("h3", {}, "Settings"), copier("Copy the settings", () => settings), el("p", {}, "With all defaults filled in. Digest of what the last job depends on: ", el("code", {}, run.settings_digest)), el("pre", { id: "settings", tabindex: "0", role: "group", "aria-label": "Settings" }, settings));
  }
}

// Marks what is wider than its place, as it scrolls.
function scrolls() {
  for (const box of document.querySelectorAll(".view:not([hidden]) .wide")) box.classList.toggle("more", box.scrollWidth > box.clientWidth + 1);
}

// The view that the part of the address after # names
function go() {
  const [view, query] = location.hash.slice(1).split("?"), asked = new URLSearchParams(query ?? "");
  const wanted = view.split("/").map((part) => { try { return decodeURIComponent(part); } catch { return part; } }).join("/") || "overview";
  const name = wanted.startsWith("claim/") ? "claim" : wanted;
  const views = [...document.querySelectorAll(".view")], found = views.find((one) => one.dataset.view === name) ?? views[0];
  for (const one of views) one.hidden = one !== found;
  for (const one of document.querySelectorAll("nav a")) {
    const own = one.hash.slice(1), here = found.dataset.view.split("/")[0];
    if (own === here || own === here + "s") one.setAttribute("aria-current", "page"); else one.removeAttribute("aria-current");
  }
  shown = [];
  scrollTo(0, 0);
  if (name in LISTS) list(name, asked);
  if (name === "claim") claim(document.getElementById("claim"), wanted.slice(6));
  for (const place of found.querySelectorAll("[data-curves]")) federation(place, place.dataset.curves);
  scrolls();
}
const redraw = () => { for (const draw of shown) draw(); scrolls(); };
let waiting;
addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(redraw, 100); });
dark.addEventListener("change", redraw);
// The element that had the focus is hidden with its view: the new view's title gets it, and is read aloud.
addEventListener("hashchange", () => {
  go();
  const title = document.querySelector(".view:not([hidden]) h2");
  title.setAttribute("tabindex", "-1");
  title.focus();
});
addEventListener("beforeprint", () => { for (const details of document.querySelectorAll(".view:not([hidden]) details")) details.open = true; });
for (const pre of document.querySelectorAll("[data-copied]")) pre.before(copier("Copy the settings", () => pre.textContent));
go();
})();
