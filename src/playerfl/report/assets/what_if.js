"use strict";
// The threshold what-if: playerfl has computed every cut, this looks them up.

// The slider runs over the logarithm: 0 … 1000 is 1 … 10,000.
const toThreshold = (position) => Number((10 ** (position / 250)).toPrecision(3));
const toPosition = (threshold) => Math.round(250 * Math.log10(Math.max(1, Math.min(1e4, threshold))));
const RATIO_RULES = ["layer_ratio", "cumulative_ratio"];
const ownProfiles = () => data.whatIf[$("pick-task").value];
function resetWhatIf() {
  const own = ownProfiles();
  $("layers").classList.toggle("off", !own);
  if (!own) return;
  options($("pick-run"), Object.keys(own.runs).map((seed) => [seed, `seed ${seed}`]));
  const s = own.settings;
  $("pick-rule").value = s.rule;
  setThreshold(s.threshold ?? own.thresholds[s.rule] ?? own.thresholds.layer_ratio);
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
// What a set of sites would choose; null where it would refuse or has no usable scores.
function cutOf(steps, settings, layers) {
  if (!steps) return null;
  return transition(steps, settings) ?? { all: layers, all_but_last: layers - 1, error: null }[settings.none];
}
// The thresholds from low up to, but without, high that give the same transition.
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
  const own = $("layers") && ownProfiles();
  if (!own) return;
  const seed = $("pick-run").value;
  const run = own.runs[seed];
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
  const cut = cutOf(together.steps, settings, own.layers.length);
  const ratios = together.ratios[settings.rule === "cumulative_ratio" ? settings.rule : "layer_ratio"];
  describeCut(own, run.sites, cut);
  fill($("cut-notes"), ...cutNotes(own, seed, settings, normalise, reduce, cut).map((text) => el("li", {}, text)));
  drawProfile(own, run, together, cut);
  let sum = 0;
  fillTable($("layer-table"),
    [["layer", true], ["parameters", false], ["score s", false], ["sensitivity F", false], ["ratio", false], ["decision", true]],
    own.layers.map((name, i) => [
      name,
      own.parameters[i].toLocaleString("en"),
      short(together.importance[i]),
      short((sum += together.importance[i])),
      i && ratios[i - 1] !== null ? `× ${short(ratios[i - 1])}` : "",
      i < cut ? ["shared", "", [], "gain"] : "private",
    ]));
}
function describeCut(own, sites, cut) {
  const total = own.parameters.reduce((a, b) => a + b, 0);
  const shared = own.parameters.slice(0, cut).reduce((a, b) => a + b, 0);
  const sent = own.sendsPrivate ? total : shared;
  const part = shared < total && shared / total > 0.9995 ? "> 99.9" : ((100 * shared) / total).toFixed(1);
  $("cut-said").textContent =
    `Shared: ${listed(own.layers.slice(0, cut))}${cut < own.layers.length ? `; private: ${listed(own.layers.slice(cut))}` : ", the whole model, as in FedAvg"}. ` +
    `Shared layers hold ${part} % of the parameters${own.sendsPrivate ? ", but private_pull sends all of them" : ""}: ` +
    `${size(own.bytes * sent)} up and as much down per site and round, ` +
    `${size(2 * own.bytes * sent * sites)} per round for ${counted(sites, "site")} (FedAvg: ${size(2 * own.bytes * total * sites)}).`;
  $("cut-said").dataset.index = cut;
}
function cutNotes(own, seed, settings, normalise, reduce, cut) {
  const run = own.runs[seed];
  const together = run.combined[`${normalise} ${reduce}`];
  const same = (sets) => sets.filter((steps) => cutOf(steps, settings, own.layers.length) === cut).length;
  const runs = Object.values(own.runs).map((other) => other.combined[`${normalise} ${reduce}`].steps);
  const free = settings.rule !== "fixed";
  const found = transition(together.steps, settings) !== null;
  const range = thresholdRange(together.steps, settings);
  const other = normalise === "none" ? "first_layer" : "none";
  const elsewhere = cutOf(run.combined[`${other} ${reduce}`].steps, { ...settings, none: settings.none === "error" ? "all" : settings.none }, own.layers.length);
  const near = range && Number.isFinite(settings.threshold)
    ? together.ratios[settings.rule].slice(0, cut).flatMap((r, i) => (r !== null && Math.abs(r - settings.threshold) <= own.near * settings.threshold ? [i] : []))
    : [];
  const layers = (count) => (count === 1 ? "layer 1" : `${count} layers`);
  return [
    found ? null : "No ratio is above the threshold: there is no clear transition.",
    free ? `Deciding alone, ${same(run.alone)} of ${counted(run.sites, "site")} would cut here.` : null,
    free && run.sites > 1 ? `With one site left out, the cut stays in ${same(together.without)} of ${run.sites} cases.` : null,
    free && runs.length > 1 ? `${same(runs)} of ${runs.length} runs cut here.` : null,
    range ? `Any threshold from ${short(range[0])} to ${range[1] === Infinity ? "∞" : `just below ${short(range[1])}`} gives this cut.` : null,
    ...near.map((i) => `Close call at ${own.layers[i + 1]}: its ratio ${short(together.ratios[settings.rule][i])} is within ${100 * own.near} % of the threshold.`),
    ...together.warnings.map((text) => `${text}.`),
    free && elsewhere !== null && elsewhere !== cut ? `With sites scaled ${other === "none" ? "as measured" : "to their first layer"}, the cut would be after ${layers(elsewhere)}.` : null,
    own.cuts[seed] !== undefined && own.cuts[seed] !== cut ? `The run itself cut after ${layers(own.cuts[seed])}.` : null,
    own.remark,
    own.leftOut ? `${counted(own.leftOut, "more run")} did not fit into this page.` : null,
  ].filter(Boolean);
}
function drawProfile(own, run, together, cut) {
  const positions = own.layers.map((_, i) => i + 1);
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
    xTicks: positions, xFormat: (p) => own.layers[p - 1], from: [0.5, own.layers.length + 0.5],
    alt: `Federation sensitivity by layer, relative to the first, of all sites together: ${series[series.length - 1].y.map((y, i) => `${own.layers[i]} ${short(y)} %`).join(", ")}. The cut is after ${counted(cut, "layer")}.`,
    rule: (px, box) => [
      el("rect", { x: px(0.5), y: box.top, width: px(cut + 0.5) - px(0.5), height: box.height - box.top - box.bottom, fill: "#009E73", opacity: 0.08 }),
      el("line", { x1: px(cut + 0.5), x2: px(cut + 0.5), y1: box.top, y2: box.height - box.bottom, stroke: "#D55E00", "stroke-width": 2, "stroke-dasharray": "6 4" }),
    ],
  });
  $("profile-caption").textContent = "Blue: all sites combined; grey: single sites. Layers on the green side of the dashed line are shared.";
}
