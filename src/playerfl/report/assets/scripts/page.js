"use strict";
// Which control redraws what.

function drawMetric() {
  const metric = $("pick-metric").value;
  for (const box of document.querySelectorAll(".by-metric")) box.classList.toggle("off", box.dataset.metric !== metric);
  if ($("tests")) drawOver();
  drawFirst();
  filterRows();
  drawSites();
  drawSplits();
}
function drawTask() {
  drawFirst();
  filterRows();
  drawSites();
  drawSplits();
  if ($("calibration")) drawCalibrationSites();
  if ($("layers")) resetWhatIf();
}
function drawMethod() {
  drawFirst();
  filterRows();
  drawSites();
  drawCurves();
  if ($("calibration")) drawCalibration();
}
// Tables of methods show those of the pickers; baselines below the line always stay.
function filterRows() {
  const [task, kept] = [$("pick-task").value, keptMethods()];
  for (const table of document.querySelectorAll("table.filtered")) {
    const heads = [...table.tHead.rows[0].cells].map((head) => head.textContent.trim());
    const isKept = { method: (name) => kept.has(name), task: (name) => name === task };
    const filters = heads.flatMap((head, i) => (isKept[head] ? [[i, isKept[head]]] : []));
    for (const row of table.querySelectorAll("tbody:not(.reference) tr")) {
      row.classList.toggle("elsewhere", !filters.every(([i, test]) => test((row.cells[i].querySelector(".v") ?? row.cells[i]).textContent)));
    }
  }
}
// A page may have a multiverse and no runs.
const hasRuns = $("pick-metric") !== null;
const on = (id, event, work) => $(id)?.addEventListener(event, work);
// A metric may belong to some tasks only; then the other picker follows the one that was used.
function follow(id) {
  if (scoresOf()) return false;
  const [select, before] = [$(id), $(id).value];
  const found = [...select.options].some(({ value }) => { select.value = value; return scoresOf(); });
  if (!found) select.value = before;
  return found;
}
function pickTask() {
  drawTask();
  if ($("tests")) followTask();
}
on("pick-metric", "change", () => { const moved = follow("pick-task"); drawMetric(); if (moved) pickTask(); });
on("pick-task", "change", () => { if (follow("pick-metric")) drawMetric(); pickTask(); });
for (const id of ["pick-algorithm", "pick-methods"]) on(id, "change", drawMethod);
on("pick-kind", "change", drawOver);
for (const id of ["pick-over", "pick-posthoc"]) on(id, "change", drawTests);
on("pick-split", "change", drawCurveSites);
on("pick-site", "change", drawCurves);
on("pick-calibration-site", "change", drawCalibration);
for (const id of ["pick-run", "pick-normalise", "pick-reduce", "pick-none"]) on(id, "change", drawWhatIf);
on("pick-rule", "change", () => { setThreshold(layerScores().thresholds[$("pick-rule").value] ?? $("threshold-number").value); drawWhatIf(); });
on("threshold", "input", () => {
  $("threshold-number").value = toThreshold(Number($("threshold").value));
  $("threshold").setAttribute("aria-valuetext", $("threshold-number").value);
  drawWhatIf();
});
on("threshold-number", "input", () => { $("threshold").value = toPosition(Number($("threshold-number").value) || 1); drawWhatIf(); });
on("fixed", "input", drawWhatIf);
on("what-if-reset", "click", resetWhatIf);
function redraw() {
  for (const draw of multiverses) draw();
  if (!hasRuns) return;
  drawFirst();
  if ($("tests")) drawTests();
  drawCurves();
  if ($("calibration")) drawCalibration();
  if ($("layers")) drawWhatIf();
}
let room = document.documentElement.clientWidth;
window.addEventListener("resize", () => {
  if (document.documentElement.clientWidth === room) return;
  room = document.documentElement.clientWidth;
  redraw();
});
// A chart in a folded part has no width yet.
for (const part of document.querySelectorAll("details.part")) part.addEventListener("toggle", () => part.open && redraw());
function unfold() {
  const target = location.hash.length > 1 && $(decodeURIComponent(location.hash.slice(1)));
  const part = target && target.querySelector("details.part");
  if (part) part.open = true;
}
window.addEventListener("hashchange", unfold);
for (const link of document.querySelectorAll("a[href^='#']")) link.addEventListener("click", () => setTimeout(unfold));
const opened = [];
function unfoldForPrint() {
  opened.push(...document.querySelectorAll("details:not([open])"));
  for (const box of opened) box.open = true;
}
function foldAgain() {
  for (const box of opened.splice(0)) box.open = false;
}
matchMedia("print").addEventListener("change", ({ matches }) => (matches ? unfoldForPrint() : foldAgain()));
// The change of medium comes after the pages have been counted, so what unfolds then is cut off.
window.addEventListener("beforeprint", unfoldForPrint);
window.addEventListener("afterprint", foldAgain);

document.querySelectorAll("table.sortable").forEach((table) => table.tHead && makeSortable(table));
document.querySelectorAll(".multiverse").forEach((home, i) => showMultiverse(home, data.multiverses[i]));
if (hasRuns) {
  document.querySelectorAll("figure[data-file]").forEach((figure) => figure.querySelector(".tools") || addTools(figure));
  $("pick-metric").value = data.metric;
  drawMetric();
  drawTask();
}
unfold();
