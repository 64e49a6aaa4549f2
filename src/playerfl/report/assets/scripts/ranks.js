"use strict";
// Tests of the ranks.

const tableName = () => {
  const kind = $("pick-kind").value;
  return kind === "score" ? $("pick-metric").value : `${kind}_${$("pick-metric").value}`;
};
const rankings = () => data.rankings[tableName()] ?? [];
function drawOver() {
  const pairs = rankings().map((r) => [r.over, r.over === "tasks" ? `the ${r.n} tasks` : `the ${counted(r.n, "run")} on ${r.over}`]);
  options($("pick-over"), pairs, $("pick-over").value);
  drawTests();
}
function followTask() {
  const task = $("pick-task").value;
  if (rankings().some((r) => r.over === task)) $("pick-over").value = task;
  drawTests();
}
function drawTests() {
  const r = rankings().find((one) => one.over === $("pick-over").value);
  if (!r) {
    $("cd-finding").textContent = "";
    $("friedman").textContent = "There are fewer than two methods to rank here.";
    for (const id of ["cd-chart", "pairs"]) fill($(id));
    $("cd-caption").textContent = $("pairs-caption").textContent = "";
    return;
  }
  $("cd-finding").textContent = r.finding;
  $("friedman").textContent = r.text;
  drawRanks(r);
  drawPairs(r);
}
function drawRanks(r) {
  const k = r.algorithms.length;
  const order = [...r.mean.keys()].sort((a, b) => r.mean[a] - r.mean[b]);
  const half = Math.ceil(k / 2);
  const row = 19;
  const bars = r.cliques.length * 9;
  const wide = boxOf($("cd-chart")).width;
  const side = wide > 700 ? 230 : 138;
  // Where there is no room for all names of a place, the first stands for them: the sentence above names the others.
  const room = (side - 18) * (wide > 700 ? 1 : 1.2) - widthOf("  00.00");
  const names = cutAll(r.labels.map((label, i) => (widthOf(label) > room ? r.algorithms[i] : label)), room);
  const [left, right, top] = [side, wide - side, r.cd === null ? 30 : 52];
  const height = top + 22 + bars + half * row + 12;
  const px = (rank) => left + ((rank - 1) / Math.max(1, k - 1)) * (right - left);
  const alt = `Mean ranks, best first: ${order.map((i) => `${r.labels[i]} ${r.mean[i].toFixed(2)}`).join(", ")}.` +
    (r.cd === null ? "" : ` Critical difference ${r.cd.toFixed(2)}.`);
  const svg = el("svg", { viewBox: `0 0 ${wide} ${height}`, role: "img", "aria-label": alt, style: wide > 700 ? null : "font-size: 10px" });
  svg.append(el("line", { x1: left, x2: right, y1: top, y2: top, stroke: "var(--ink)" }));
  // A tick label needs some twenty pixels: a phone shows every second or third.
  const every = Math.max(1, Math.ceil((20 * (k - 1)) / (right - left)));
  for (let t = 1; t <= k; t += every) {
    svg.append(el("line", { x1: px(t), x2: px(t), y1: top - 5, y2: top, stroke: "var(--ink)" }), el("text", { x: px(t), y: top - 9, "text-anchor": "middle" }, String(t)));
  }
  if (r.cd !== null && k > 1) {
    const end = Math.min(px(1 + r.cd), wide - 5);
    svg.append(
      el("path", { d: `M${left} ${top - 38}v8m0-4H${end}m0-4v8`, fill: "none", stroke: "var(--ink)", "stroke-width": 1.5 }),
      el("text", { x: end + 80 > wide ? left - 8 : end + 6, y: top - 30, "text-anchor": end + 80 > wide ? "end" : "start" }, `CD = ${r.cd.toFixed(2)}`),
    );
  }
  r.cliques.forEach((members, i) => {
    const ranks = members.map((m) => r.mean[m]);
    const y = top + 12 + i * 9;
    svg.append(el("line", { x1: px(Math.min(...ranks)) - 4, x2: px(Math.max(...ranks)) + 4, y1: y, y2: y, stroke: "var(--axis)", "stroke-width": 4 }));
  });
  order.forEach((member, position) => {
    const isLeft = position < half;
    const y = top + 22 + bars + (isLeft ? position : k - 1 - position) * row;
    const x = px(r.mean[member]);
    const edge = isLeft ? left - 8 : right + 8;
    svg.append(
      el("path", { d: `M${x} ${top}V${y}H${edge}`, fill: "none", stroke: look(r.algorithms[member]).colour, "stroke-width": 1.4 }),
      el("text", { x: isLeft ? edge - 5 : edge + 5, y: y + 4, "text-anchor": isLeft ? "end" : "start" }, `${names[member]}  ${r.mean[member].toFixed(2)}`),
    );
  });
  numbersOf.set(svg, [["method", "mean_rank"], ...order.map((i) => [r.labels[i], r.mean[i]])]);
  fill($("cd-chart"), svg);
  $("cd-caption").textContent = r.cd === null
    ? "Mean rank of each method; 1 is best."
    : "Mean rank of each method; 1 is best. Methods joined by a grey bar do not differ significantly (they are closer than Nemenyi’s critical difference at the 5 % level).";
}
function drawPairs(r) {
  const what = $("pick-posthoc").value;
  const matrix = r[what];
  const table = $("pairs");
  if (!matrix) {
    fill(table);
    $("pairs-caption").textContent = "";
    return;
  }
  // The upper triangle, row by row; effects change sign below it.
  const upper = (i, j) => matrix[(i * (2 * r.algorithms.length - i - 1)) / 2 + j - i - 1];
  const between = (i, j) => (i < j ? upper(i, j) : (what === "effect" ? -1 : 1) * upper(j, i));
  fill(
    table,
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Method"), ...r.labels.map((name) => el("th", { scope: "col", class: "num" }, name)))),
    el("tbody", {}, ...r.labels.map((name, i) =>
      el("tr", {}, el("th", { scope: "row" }, name), ...r.algorithms.map((_, j) => {
        const value = between(i, j);
        if (i === j) return el("td", { class: "none" }, "–");
        return what === "effect"
          ? el("td", {}, minus((value > 0 ? "+" : "") + value.toFixed(2)))
          : el("td", { class: value < 0.05 ? "sure" : null, title: pSaid(value) }, value < 1e-4 ? "<1e-4" : pValue(value));
      })))),
  );
  $("pairs-caption").textContent = what === "effect"
    ? "Rank-biserial correlation over the blocks: +1 where the row’s method is better in every block, −1 where it is worse in every block."
    : `Shaded: below 0.05.${what === "holm" ? ` ${r.holmLimit}` : ""}`;
}
