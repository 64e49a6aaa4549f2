"use strict";
// The table of sites; their picture is on the first screen.

function drawSites() {
  const [metric, task, algorithm] = ["pick-metric", "pick-task", "pick-algorithm"].map((id) => $(id).value);
  const view = data.siteTables[task]?.[algorithm]?.[metric];
  if (!view) {
    fill($("site-table"));
    $("sites-said").textContent = `There are no runs of ${algorithm} on ${task} with this metric.`;
    return;
  }
  fillTable($("site-table"), data.siteHeads[view.heads], view.rows);
  makeSortable($("site-table"));
  $("sites-said").textContent = `${algorithm} on ${task}, worst off first. ${view.remark}`;
}
