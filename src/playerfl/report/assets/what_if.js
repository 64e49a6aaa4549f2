"use strict";
// The threshold what-if.

// The slider runs over the logarithm: 0 … 1000 is 1 … 10,000.
const toThreshold = (position) => Number((10 ** (position / 250)).toPrecision(3));
const toPosition = (threshold) => Math.round(250 * Math.log10(Math.max(1, Math.min(1e4, threshold))));
const ownProfiles = () => data.whatIf[$("pick-task").value];
function resetWhatIf() {
  const own = ownProfiles();
  $("layers").classList.toggle("off", !own);
  if (!own) return;
  options($("pick-run"), Object.keys(own.runs).map((seed) => [seed, `seed ${seed}`]));
  const s = own.settings;
  $("pick-rule").value = s.rule;
  setThreshold(s.threshold ?? cut.THRESHOLDS[s.rule] ?? 3.5);
  $("fixed").max = own.layers.length;
  $("fixed").value = s.fixed ?? own.cuts[$("pick-run").value] ?? own.layers.length;
  $("pick-normalise").value = s.normalise;
  $("pick-reduce").value = s.client_weight === "samples" ? "samples" : s.reduce;
  $("pick-none").value = s.on_no_transition;
  drawWhatIf();
}
function setThreshold(value) {
  $("threshold-number").value = value;
  $("threshold").value = toPosition(value);
  $("threshold").setAttribute("aria-valuetext", String(value));
}
function chosenOptions(own, seed) {
  const reduce = $("pick-reduce").value;
  return {
    rule: $("pick-rule").value,
    threshold: $("threshold-number").value === "" ? NaN : Number($("threshold-number").value),
    fixed: Number($("fixed").value),
    normalise: $("pick-normalise").value,
    reduce: reduce === "median" ? "median" : "mean",
    clientWeight: reduce === "samples" ? "samples" : "uniform",
    numExamples: own.examples[seed],
    onNoTransition: $("pick-none").value,
  };
}
const attempt = (work) => { try { return work(); } catch { return null; } };
function stability(own, seed, settings, index) {
  const scores = own.runs[seed];
  const sites = Object.keys(scores);
  const choice = (subset) => attempt(() => cut.chooseCut(subset, settings).index);
  const alone = sites.map((site) => choice(Object.fromEntries([[site, scores[site]]])));
  const without = sites.length > 1 ? sites.map((site) => choice(Object.fromEntries(sites.filter((s) => s !== site).map((s) => [s, scores[s]])))) : [];
  const runs = Object.keys(own.runs).map((other) => attempt(() => cut.chooseCut(own.runs[other], { ...settings, numExamples: own.examples[other] }).index));
  const same = (list) => list.filter((p) => p === index).length;
  return { sites: sites.length, alone: same(alone), without: same(without), runs: runs.length, sameRuns: same(runs) };
}
// Between which thresholds the choice stays: the ratios are where it can change.
function thresholdRange(found, rule) {
  if (!(rule in cut.THRESHOLDS)) return null;
  const least = rule === "cumulative_ratio" ? 1 : 0;
  const at = (t) => { const i = found.ratios.findIndex((r) => r !== null && r > t); return i < 0 ? null : i + 1; };
  const now = found.found ? found.index : null;
  const before = now === null ? found.ratios : found.ratios.slice(0, now - 1);
  const low = Math.max(least, ...before.filter((r) => r !== null));
  const high = now === null ? Infinity : found.ratios[now - 1];
  return at(low) === now ? [low, high] : null;
}
function drawWhatIf() {
  const own = $("layers") && ownProfiles();
  if (!own) return;
  const seed = $("pick-run").value;
  const settings = chosenOptions(own, seed);
  const isRatio = settings.rule in cut.THRESHOLDS;
  $("threshold-box").hidden = !isRatio;
  $("fixed-box").hidden = settings.rule !== "fixed";
  $("fixed-out").textContent = $("fixed").value;
  let found;
  try {
    found = cut.chooseCut(own.runs[seed], settings);
  } catch (problem) {
    $("cut-said").textContent = `No cut: ${problem.message}.`;
    for (const id of ["cut-notes", "profile-chart", "layer-table"]) fill($(id));
    $("profile-caption").textContent = "";
    return;
  }
  const total = own.parameters.reduce((a, b) => a + b, 0);
  const sent = own.parameters.slice(0, found.index).reduce((a, b) => a + b, 0);
  const sites = Object.keys(own.runs[seed]).length;
  $("cut-said").textContent =
    `${found.index ? `${listed(own.layers.slice(0, found.index))} would travel` : "Nothing would travel"}` +
    `${found.index < own.layers.length ? `; ${listed(own.layers.slice(found.index))} would stay at each site` : ", that is everything, as in FedAvg"}. ` +
    `That is ${((100 * sent) / total).toFixed(1)} % of the parameters: ${size(own.bytes * sent)} up and as much down for each of ${counted(sites, "site")} and round, ` +
    `${size(2 * own.bytes * sent * sites)} a round together (FedAvg: ${size(2 * own.bytes * total * sites)}).`;
  $("cut-said").dataset.index = found.index;
  const s = stability(own, seed, settings, found.index);
  const range = thresholdRange(found, settings.rule);
  const notes = [
    found.found ? null : "No ratio is above the threshold: there is no clear transition.",
    settings.rule === "fixed" ? null : `Deciding alone, ${s.alone} of ${counted(s.sites, "site")} would cut here; without any one site, ${s.without} of ${s.sites} times the cut stays.`,
    s.runs > 1 && settings.rule !== "fixed" ? `${s.sameRuns} of ${s.runs} runs cut here.` : null,
    range ? `Any threshold from ${short(range[0])} to ${range[1] === Infinity ? "∞" : `just below ${short(range[1])}`} gives this cut.` : null,
    ...found.closeCalls.map((p) => `Close call at ${own.layers[p]}: its ratio ${short(found.ratios[p - 1])} is within 10 % of the threshold.`),
    found.dominating === null ? null : `${found.dominating} alone supplies more than 80 % of the summed sensitivity and decides the cut.`,
    found.otherNormalise ? `With sites scaled ${found.otherNormalise.normalise === "none" ? "as measured" : "to their first layer"} the cut would be after ${counted(found.otherNormalise.elsewhere, "layer")}.` : null,
    found.leftOut.length ? `Left out, since their scores are not finite or all zero: ${listed(found.leftOut)}.` : null,
    own.cuts[seed] !== undefined && own.cuts[seed] !== found.index ? `The run itself cut after ${counted(own.cuts[seed], "layer")}.` : null,
    own.printed !== null ? `The paper prints a cut after ${counted(own.printed, "layer")} for this dataset.` : null,
    own.leftOut ? `${counted(own.leftOut, "run")} more did not fit into this page.` : null,
  ];
  fill($("cut-notes"), ...notes.filter(Boolean).map((text) => el("li", {}, text)));
  drawProfile(own, seed, found);
  const sums = cut.cumulated(found.importance);
  fill($("layer-table"),
    el("thead", {}, el("tr", {}, ...["Layer", "Parameters", "Score s", "Sensitivity F", "Ratio", "Decision"].map((text, i) => el("th", { scope: "col", class: i > 0 && i < 5 ? "num" : null }, text)))),
    el("tbody", {}, ...own.layers.map((name, i) => el("tr", {},
      el("th", { scope: "row" }, name),
      el("td", { class: "num" }, own.parameters[i].toLocaleString("en")),
      el("td", { class: "num" }, short(found.importance[i])),
      el("td", { class: "num" }, short(sums[i])),
      el("td", { class: "num" }, i && found.ratios[i - 1] !== null ? `× ${short(found.ratios[i - 1])}` : ""),
      el("td", { class: i < found.index ? "gain" : "" }, i < found.index ? "travels" : "stays at the site")))));
}
function drawProfile(own, seed, found) {
  const positions = own.layers.map((_, i) => i + 1);
  const relative = (values) => {
    const sums = cut.cumulated(values);
    const first = sums.find((v) => v > 0);
    return sums.map((v) => (v / first) * 100);
  };
  const usable = Object.entries(own.runs[seed]).filter(([site]) => !found.leftOut.includes(site)).slice(0, 60);
  const series = [
    ...usable.map(([site, values]) => ({ name: site, colour: "#57606a", x: positions, y: relative(values), faint: true })),
    { name: "all sites", colour: "#0072B2", x: positions, y: relative(found.importance), markers: true },
  ];
  lineChart($("profile-chart"), {
    series, xLabel: "layer", yLabel: "sensitivity, % of the first layer", log: true, format: short,
    xTicks: positions, xFormat: (p) => own.layers[p - 1], from: [0.5, own.layers.length + 0.5],
    alt: `Federation sensitivity by layer, relative to the first, of all sites together: ${series[series.length - 1].y.map((y, i) => `${own.layers[i]} ${short(y)} %`).join(", ")}. The cut is after ${counted(found.index, "layer")}.`,
    rule: (px, box) => [
      el("rect", { x: px(0.5), y: box.top, width: px(found.index + 0.5) - px(0.5), height: box.height - box.top - box.bottom, fill: "#009E73", opacity: 0.08 }),
      el("line", { x1: px(found.index + 0.5), x2: px(found.index + 0.5), y1: box.top, y2: box.height - box.bottom, stroke: "#D55E00", "stroke-width": 2, "stroke-dasharray": "6 4" }),
    ],
  });
  $("profile-caption").textContent = "Blue: all sites together; grey: single sites. Layers on the green side of the dashed line travel.";
}
