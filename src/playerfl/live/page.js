"use strict";
const frame = document.getElementById("report");
let shown = 0, loaded = 0, misses = 0;

function fit() {
  const inside = frame.contentDocument;
  if (inside && inside.documentElement) frame.style.height = inside.documentElement.scrollHeight + "px";
}
frame.addEventListener("load", () => {
  if (!frame.src) return;
  document.getElementById("no-report").hidden = true;
  frame.hidden = false;
  if (frame.contentDocument && frame.contentDocument.body) new ResizeObserver(fit).observe(frame.contentDocument.body);
});

function refreshReport(finished, over) {
  // A new report takes time to compute and forgets what was picked, so it is not fetched for every run of a study.
  if (!finished || finished === shown || (shown && !over && Date.now() - loaded < 30000)) return;
  shown = finished;
  loaded = Date.now();
  if (frame.hidden) document.getElementById("no-report").textContent = "It is being computed …";
  frame.src = "report?runs=" + finished;
}

async function refresh() {
  const state = document.getElementById("state");
  let over = false;
  try {
    const answer = await fetch("status", { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status);
    const place = document.getElementById("status");
    place.innerHTML = await answer.text();
    const found = place.firstElementChild.dataset;
    over = found.over === "yes";
    refreshReport(Number(found.finished), over);
    state.textContent = "Last updated: " + new Date().toLocaleTimeString() + ". This page only reads files, and only this computer can open it.";
    misses = 0;
  } catch (problem) {
    misses += 1;
    if (misses > 2) state.textContent = "playerfl no longer answers: the command has ended. What is shown is the last state.";
  }
  setTimeout(refresh, over ? 10000 : misses > 2 ? 10000 : 2000);
}
refresh();
