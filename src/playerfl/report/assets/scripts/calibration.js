"use strict";
// Reliability curves: what was predicted against what came true.

function drawCalibrationSites() {
  const sites = Object.keys(data.calibration[$("pick-task").value] ?? {});
  options($("pick-calibration-site"), sites.map((site) => [site, site || "all sites together"]), $("pick-calibration-site").value);
  drawCalibration();
}
function drawCalibration() {
  const site = $("pick-calibration-site").value;
  const curves = data.calibration[$("pick-task").value]?.[site] ?? {};
  const [kept, about] = [keptMethods(), $("pick-algorithm").value];
  const names = data.algorithms.filter((name) => curves[name] && kept.has(name));
  const series = names.map((name) => ({ name, ...look(name), markers: true, x: curves[name].x, y: curves[name].y, low: name === about ? curves[name].l : null, high: curves[name].h }));
  const percent = (y) => String(Math.round(100 * y));
  const diagonal = { name: "perfect", colour: "var(--axis)", dash: "3 3", faint: true, x: [0, 1], y: [0, 1] };
  lineChart($("calibration-chart"), {
    series: [diagonal, ...series], from: [0, 1], xTicks: [0, 0.25, 0.5, 0.75, 1], xFormat: percent, format: percent,
    xLabel: "predicted probability, %", yLabel: "came true, %",
    alt: `Reliability of ${listed(names)} on the test rows of ${site || "all sites together"}; the values are in the table below.`,
  });
  $("calibration-caption").textContent = "Each point holds the rows of one range of probability. Dashed: probabilities that come true as often as they say." +
    (curves[about] ? ` Band: 95 % interval of ${about} (Wilson).` : "");
  // The calibration error: how far a probability is from what came true, on average over the rows.
  const { x, y, n } = curves[about] ?? { x: [], y: [], n: [] };
  const off = x.reduce((sum, predicted, i) => sum + n[i] * Math.abs(predicted - y[i]), 0) / n.reduce((a, b) => a + b, 0);
  $("calibration-finding").textContent = Number.isFinite(off) ? `The probabilities of ${about} are off by ${(100 * off).toFixed(1)} points on average` : "";
  fill($("calibration-legend"), ...names.map((name) => {
    const { colour, dash } = look(name);
    return el("span", { class: "key" }, el("svg", { viewBox: "0 0 30 10", "aria-hidden": "true" }, el("line", { x1: 0, x2: 30, y1: 5, y2: 5, stroke: colour, "stroke-width": 3, "stroke-dasharray": dash || null })), name);
  }));
  fillTable($("calibration-table"), [["Method", true], ["predicted, %", false], ["came true, %", false], ["rows", false]],
    names.flatMap((name) => curves[name].x.map((x, i) => [name, percent(x), percent(curves[name].y[i]), String(curves[name].n[i])])));
}
