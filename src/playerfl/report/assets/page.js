"use strict";
// Which control redraws what.

function drawMetric() {
  const metric = $("pick-metric").value;
  for (const box of document.querySelectorAll(".by-metric")) box.classList.toggle("off", box.dataset.metric !== metric);
  if ($("tests")) drawOver();
  drawSites();
  drawSplits();
}
function drawTask() {
  for (const row of document.querySelectorAll("table[data-name=costs] tbody tr")) {
    row.classList.toggle("elsewhere", row.cells[1].textContent.trim() !== $("pick-task").value);
  }
  drawSites();
  drawSplits();
  if ($("calibration")) drawCalibrationSites();
  if ($("layers")) resetWhatIf();
}
// A page may have a multiverse and no runs.
const hasRuns = $("pick-metric") !== null;
const on = (id, event, work) => $(id)?.addEventListener(event, work);
on("pick-metric", "change", drawMetric);
on("pick-task", "change", drawTask);
on("pick-kind", "change", drawOver);
for (const id of ["pick-over", "pick-posthoc"]) on(id, "change", drawTests);
on("pick-algorithm", "change", drawSites);
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
let room = document.documentElement.clientWidth;
window.addEventListener("resize", () => {
  if (document.documentElement.clientWidth === room) return;
  room = document.documentElement.clientWidth;
  for (const draw of multiverses) draw();
  if (!hasRuns) return;
  if ($("tests")) drawTests();
  drawCurves();
  if ($("calibration")) drawCalibration();
  if ($("layers")) drawWhatIf();
});
let opened = [];
window.addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  for (const box of opened) box.open = true;
});
window.addEventListener("afterprint", () => { for (const box of opened) box.open = false; });

document.querySelectorAll("table.sortable").forEach((table) => table.tHead && makeSortable(table));
document.querySelectorAll(".multiverse").forEach((home, i) => showMultiverse(home, data.multiverses[i]));
if (hasRuns) {
  $("pick-metric").value = data.metric;
  drawMetric();
  drawTask();
}
