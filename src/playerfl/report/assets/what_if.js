"use strict";
// The threshold what-if: playerfl has computed every cut; this looks them up.

// The slider runs over the logarithm: 0 … 1000 is 1 … 10,000.
const toThreshold = (position) => Number((10 ** (position / 250)).toPrecision(3));
const toPosition = (threshold) => Math.round(250 * Math.log10(Math.max(1, Math.min(1e4, threshold))));
const RATIO_RULES = ["layer_ratio", "cumulative_ratio"];
const layerScores = () => data.whatIf[$("pick-task").value];
function resetWhatIf() {
  const scores = layerScores();
  $("layers").classList.toggle("off", !scores);
  if (!scores) return;
  options($("pick-run"), Object.keys(scores.runs).map((seed) => [seed, `seed ${seed}`]));
  const s = scores.settings;
  $("pick-rule").value = s.rule;
  setThreshold(s.threshold ?? scores.thresholds[s.rule] ?? scores.thresholds.layer_ratio);
  $("fixed").max = scores.layers.length;
  $("fixed").value = s.fixed ?? scores.cuts[$("pick-run").value] ?? scores.layers.length;
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
// The steps of a ratio rule as [ratio, cut] pairs; the cut at threshold t is that of the first ratio above t.
function stepsOf(steps, rule) {
  const flat = steps[RATIO_RULES.indexOf(rule)].map(numeric);
  return flat.flatMap((ratio, i) => (i % 2 ? [] : [[ratio, flat[i + 1]]]));
}
function transition(steps, settings) {
  if (settings.rule === "fixed") return settings.fixed;
  if (settings.rule === "max_jump") return steps[2];
  return stepsOf(steps, settings.rule).find(([ratio]) => ratio > settings.threshold)?.[1] ?? null;
}
// The cut that a set of sites would choose; null if it would refuse or has no usable scores.
function cutOf(steps, settings, layers) {
  if (!steps) return null;
  return transition(steps, settings) ?? { all: layers, all_but_last: layers - 1, error: null }[settings.none];
}
// The thresholds that give the same transition, from low up to, but not including, high.
function thresholdRange(steps, settings) {
  if (!RATIO_RULES.includes(settings.rule)) return null;
  const bounds = stepsOf(steps, settings.rule).map(([ratio]) => ratio);
  const lowest = settings.rule === "cumulative_ratio" ? 1 : 0;
  return [Math.max(lowest, ...bounds.filter((ratio) => ratio <= settings.threshold)), bounds.find((ratio) => ratio > settings.threshold) ?? Infinity];
}
function refusal(together, settings) {
  if (typeof together === "string") return together;
  const lowest = settings.rule === "cumulative_ratio" ? 1 : 0;
  if (RATIO_RULES.includes(settings.rule) && !(settings.threshold >= lowest)) return `the threshold of this rule must be at least ${lowest}`;
  return transition(together.steps, settings) === null && settings.none === "error" ? "no clear transition" : "";
}
function drawWhatIf() {
  const scores = $("layers") && layerScores();
  if (!scores) return;
  const seed = $("pick-run").value;
  const run = scores.runs[seed];
  const settings = {
    rule: $("pick-rule").value,
    threshold: $("threshold-number").value === "" ? NaN : Number($("threshold-number").value),
    fixed: Number($("fixed").value),
    none: $("pick-none").value,
  };
  const [normalise, reduce] = [$("pick-normalise").value, $("pick-reduce").value];
  const together = run.combined[`${normalise} ${reduce}`];
  $("threshold-box").hidden = !RATIO_RULES.includes(settings.rule);
  $("fixed-box").hidden = settings.rule !== "fixed";
  $("fixed-out").textContent = $("fixed").value;
  const problem = refusal(together, settings);
  if (problem) {
    $("cut-said").textContent = `No cut: ${problem}.`;
    for (const id of ["cut-notes", "profile-chart", "layer-table"]) fill($(id));
    $("profile-caption").textContent = "";
    return;
  }
  const cut = cutOf(together.steps, settings, scores.layers.length);
  const ratios = together.ratios[settings.rule === "cumulative_ratio" ? settings.rule : "layer_ratio"];
  describeCut(scores, run.sites, cut);
  fill($("cut-notes"), ...cutNotes(scores, seed, settings, normalise, reduce, cut).map((text) => el("li", {}, text)));
  drawProfile(scores, run, together, cut);
  let sum = 0;
  fillTable($("layer-table"),
    [["layer", true], ["parameters", false], ["score s", false], ["sensitivity F", false], ["ratio", false], ["decision", true]],
    scores.layers.map((name, i) => [
      name,
      scores.parameters[i].toLocaleString("en"),
      short(together.importance[i]),
      short((sum += together.importance[i])),
      i && ratios[i - 1] !== null ? `× ${short(ratios[i - 1])}` : "",
      i < cut ? ["shared", "", [], "gain"] : "private",
    ]));
}
function describeCut(scores, sites, cut) {
  const total = scores.parameters.reduce((a, b) => a + b, 0);
  const shared = scores.parameters.slice(0, cut).reduce((a, b) => a + b, 0);
  const sent = scores.sendsPrivate ? total : shared;
  const part = shared < total && shared / total > 0.9995 ? "> 99.9" : ((100 * shared) / total).toFixed(1);
  $("cut-said").textContent =
    `Shared: ${listed(scores.layers.slice(0, cut))}${cut < scores.layers.length ? `; private: ${listed(scores.layers.slice(cut))}` : ", the whole model, as in FedAvg"}. ` +
    `Shared layers hold ${part} % of the parameters${scores.sendsPrivate ? ", but private_pull sends the rest too" : ""}: ` +
    `${size(scores.bytes * sent)} up and the same amount down per site and round, ` +
    `${size(2 * scores.bytes * sent * sites)} per round for ${counted(sites, "site")} (FedAvg: ${size(2 * scores.bytes * total * sites)}).`;
  $("cut-said").dataset.index = cut;
}
function cutNotes(scores, seed, settings, normalise, reduce, cut) {
  const run = scores.runs[seed];
  const together = run.combined[`${normalise} ${reduce}`];
  const same = (sets) => sets.filter((steps) => cutOf(steps, settings, scores.layers.length) === cut).length;
  const runs = Object.values(scores.runs).map((other) => other.combined[`${normalise} ${reduce}`].steps);
  const free = settings.rule !== "fixed";
  const clear = transition(together.steps, settings) !== null;
  const range = thresholdRange(together.steps, settings);
  const other = normalise === "none" ? "first_layer" : "none";
  const elsewhere = cutOf(run.combined[`${other} ${reduce}`].steps, { ...settings, none: settings.none === "error" ? "all" : settings.none }, scores.layers.length);
  const near = range && Number.isFinite(settings.threshold)
    ? together.ratios[settings.rule].slice(0, cut).flatMap((r, i) => (r !== null && Math.abs(r - settings.threshold) <= scores.near * settings.threshold ? [i] : []))
    : [];
  const layers = (count) => (count === 1 ? "layer 1" : `${count} layers`);
  return [
    clear ? null : "No ratio is above the threshold: there is no clear transition.",
    free ? `Deciding alone, ${same(run.alone)} of ${counted(run.sites, "site")} would cut here.` : null,
    free && run.sites > 1 ? `With one site left out, the cut stays the same in ${same(together.without)} of ${run.sites} cases.` : null,
    free && runs.length > 1 ? `${same(runs)} of ${runs.length} runs cut here.` : null,
    range ? `Any threshold from ${short(range[0])} to ${range[1] === Infinity ? "∞" : `just below ${short(range[1])}`} gives this cut.` : null,
    ...near.map((i) => `Close call at ${scores.layers[i + 1]}: its ratio ${short(together.ratios[settings.rule][i])} is within ${100 * scores.near} % of the threshold.`),
    ...together.warnings.map((text) => `${text}.`),
    free && elsewhere !== null && elsewhere !== cut ? `With the sites’ scores ${other === "none" ? "as measured" : "scaled to their first layer"}, the cut would be after ${layers(elsewhere)}.` : null,
    scores.cuts[seed] !== undefined && scores.cuts[seed] !== cut ? `The run itself cut after ${layers(scores.cuts[seed])}.` : null,
    scores.remark,
    scores.leftOut ? `${counted(scores.leftOut, "more run")} did not fit on this page.` : null,
  ].filter(Boolean);
}
function drawProfile(scores, run, together, cut) {
  const positions = scores.layers.map((_, i) => i + 1);
  const relative = (values) => {
    let sum = 0;
    const sums = values.map((value) => (sum += value));
    const first = sums.find((value) => value > 0);
    return sums.map((value) => (value / first) * 100);
  };
  const series = [
    ...run.profiles.map((values, i) => ({ name: `site ${i + 1}`, colour: "#57606a", x: positions, y: relative(values), faint: true })),
    { name: "all sites", colour: "#0072B2", x: positions, y: relative(together.importance), markers: true },
  ];
  lineChart($("profile-chart"), {
    series, xLabel: "layer", yLabel: "sensitivity, % of the first layer", log: true, format: short,
    xTicks: positions, xFormat: (p) => scores.layers[p - 1], from: [0.5, scores.layers.length + 0.5],
    alt: `Federation sensitivity by layer, relative to the first, of all sites together: ${series[series.length - 1].y.map((y, i) => `${scores.layers[i]} ${short(y)} %`).join(", ")}. The cut is after ${counted(cut, "layer")}.`,
    rule: (px, box) => [
      el("rect", { x: px(0.5), y: box.top, width: px(cut + 0.5) - px(0.5), height: box.height - box.top - box.bottom, fill: "#009E73", opacity: 0.08 }),
      el("line", { x1: px(cut + 0.5), x2: px(cut + 0.5), y1: box.top, y2: box.height - box.bottom, stroke: "#D55E00", "stroke-width": 2, "stroke-dasharray": "6 4" }),
    ],
  });
  $("profile-caption").textContent = "Blue: all sites combined; grey: single sites. Layers on the green side of the dashed line are shared.";
}
