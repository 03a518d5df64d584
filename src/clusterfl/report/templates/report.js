"use strict";
// Clusters round by round. Without this script the figure of the last round stands alone.
for (const place of document.querySelectorAll(".steps")) {
  const data = JSON.parse(place.querySelector("script").textContent);
  const slider = place.querySelector("input"), said = place.querySelector("output");
  const [back, on] = place.querySelectorAll("button");
  const rows = place.querySelector(".strips");

  const strip = (name) => {
    const row = document.createElement("div"), title = document.createElement("span"), cells = document.createElement("canvas"), words = document.createElement("span");
    title.textContent = name;
    words.className = "note";
    cells.width = data.clients.length;
    cells.height = 1;
    cells.setAttribute("role", "img");
    row.append(title, cells, words);
    rows.append(row);
    return { name, cells, words };
  };
  const paint = (row, clusters, text) => {
    const ink = row.cells.getContext("2d");
    clusters.forEach((k, i) => {
      ink.fillStyle = k < 0 ? "#ffffff" : data.colours[k % data.colours.length];
      ink.fillRect(i, 0, 1, 1);
    });
    row.cells.setAttribute("aria-label", `${row.name}: ${text}`);
    row.words.textContent = text;
  };
  const described = (clusters, moved) => {
    const sizes = new Map();
    for (const k of clusters) if (k >= 0) sizes.set(k, (sizes.get(k) ?? 0) + 1);
    const largest = [...sizes.values()].sort((a, b) => b - a), more = largest.length > 6 ? ", ..." : "";
    const missing = clusters.filter((k) => k < 0).length;
    return `${largest.length} cluster${largest.length === 1 ? "" : "s"}${largest.length ? " of " + largest.slice(0, 6).join(", ") + more : ""}`
      + (missing ? `; ${missing} without` : "") + (moved === null ? "" : `; ${moved} moved`);
  };

  if (data.groups) paint(strip("planted groups"), data.groups, described(data.groups, null));
  for (const method of data.methods) {
    method.row = strip(method.name);
    method.clusters = [method.first];
    for (const moves of method.moves) {
      const next = [...method.clusters[method.clusters.length - 1]];
      for (let i = 0; i < moves.length; i += 2) next[moves[i]] = moves[i + 1];
      method.clusters.push(next);
    }
  }
  const show = () => {
    const step = Number(slider.value);
    said.textContent = `round ${data.rounds[step]}`;
    slider.setAttribute("aria-valuetext", said.textContent);
    back.disabled = step === 0;
    on.disabled = step === data.rounds.length - 1;
    for (const method of data.methods) paint(method.row, method.clusters[step], described(method.clusters[step], step ? method.moves[step - 1].length / 2 : null));
  };
  const to = (change) => { slider.value = String(Number(slider.value) + change); show(); };
  slider.max = String(data.rounds.length - 1);
  slider.value = slider.max;
  slider.addEventListener("input", show);
  back.addEventListener("click", () => to(-1));
  on.addEventListener("click", () => to(1));
  show();
  place.hidden = false;
}
// Paper can't be opened.
addEventListener("beforeprint", () => { for (const details of document.querySelectorAll("details")) details.open = true; });
