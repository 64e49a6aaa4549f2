"use strict";
// Learning curves.

// What the reader ticked in the legend; all other methods follow the choice at the top of the page.
const ticked = new Map();
function drawSplits() {
  const splits = data.curves[$("pick-task").value] ?? {};
  const known = Object.keys(splits).filter((split) => splits[split][$("pick-metric").value]);
  const before = $("pick-split").value;
  options($("pick-split"), known.map((split) => [split, { test: "test", validation: "validation", train: "training" }[split]]), before);
  drawCurveSites();
}
function drawCurveSites() {
  const before = $("pick-site").value;
  const perSite = $("pick-split").value === "test" ? data.sites[$("pick-task").value] : [];
  options($("pick-site"), [["", "all sites, averaged"], ...perSite.map((name, i) => [String(i), name])], before);
  drawCurves();
}
function curveFinding(series, metric, task, where, format) {
  const ends = series.map((s) => [s.name, s.y[s.y.length - 1]]).filter(([, y]) => Number.isFinite(y));
  if (!ends.length || data.notLearnt.includes(task)) return `${metric.name} of ${where} on ${task}, by round`;
  const [best, y] = ends.reduce((a, b) => ((metric.lower ? b[1] < a[1] : b[1] > a[1]) ? b : a));
  const value = `${format(y)}${metric.percent ? " %" : ""}`;
  if (series.length === 1) return `In the last round, the ${lowered(metric.name)} of ${best} is ${value}`;
  return `In the last round, ${best} has the ${metric.lower ? "lowest" : "best"} ${lowered(metric.name)} of the methods shown: ${value}`;
}
function drawCurves() {
  const [task, split, site] = ["pick-task", "pick-split", "pick-site"].map((id) => $(id).value);
  const curves = data.curves[task]?.[split]?.[$("pick-metric").value] ?? {};
  const metric = metricOf();
  const names = data.algorithms.filter((name) => curves[name]);
  const kept = keptMethods();
  const isShown = (name) => ticked.get(name) ?? kept.has(name);
  fill($("curve-legend"), ...names.map((name) => {
    const { colour, dash } = look(name);
    const box = el("input", { type: "checkbox" });
    box.checked = isShown(name);
    box.addEventListener("change", () => { ticked.set(name, box.checked); drawCurves(); $("curve-legend").querySelectorAll("input")[names.indexOf(name)].focus(); });
    return el("label", {}, box, el("svg", { viewBox: "0 0 30 10", "aria-hidden": "true" }, el("line", { x1: 0, x2: 30, y1: 5, y2: 5, stroke: colour, "stroke-width": 3, "stroke-dasharray": dash || null })), name);
  }));
  const series = names.filter(isShown).map((name) => {
    const c = curves[name];
    const { colour, dash } = look(name);
    const values = (list) => list.map(numeric);
    return site === ""
      ? { name, colour, dash, x: c.r, y: values(c.m), low: c.n > 1 ? values(c.l) : null, high: values(c.h), end: c.t === null ? undefined : numeric(c.t) }
      : { name, colour, dash, x: c.r, y: values(c.s[Number(site)]) };
  });
  const format = formatted(metric);
  const where = site === "" ? "all sites (average)" : data.sites[task][Number(site)];
  const cell = (y) => (y === undefined ? "" : Number.isFinite(y) ? format(y) : "diverged");
  const last = series.map((s) => `${s.name} ${cell(s.y[s.y.length - 1])}`);
  $("curve-finding").textContent = curveFinding(series, metric, task, where, format);
  lineChart($("curve-chart"), {
    series, xLabel: "round", yLabel: metric.name + (metric.percent ? ", %" : ""), format, tickFormat: onAxis(metric),
    alt: `${metric.name} of ${where} on ${task} by round. In the last round: ${last.join(", ")}. Use the arrow keys to read single rounds; the values are in the table below.`,
  });
  $("curve-caption").textContent =
    `${metric.name} of ${where} on the ${split === "train" ? "training" : split} data. ` +
    (site === "" ? "Lines: median over runs; bands: the middle half of the runs; diamonds: after a method’s final tuning." : "Median over runs.") +
    names.filter((name) => curves[name].d).map((name) => ` ${name}: ${curves[name].d} of ${counted(curves[name].n, "run")} diverged; from then on they count as the worst.`).join("");
  const shown = [...new Set(series.flatMap((s) => s.x))].sort((a, b) => a - b);
  fillTable($("curve-table"), [["Round", true], ...series.map((s) => [s.name, false])],
    shown.map((x) => [String(x), ...series.map((s) => cell(s.y[s.x.indexOf(x)]))]));
}
