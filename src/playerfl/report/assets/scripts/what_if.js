"use strict";
// The threshold what-if: playerfl has computed every cut; this looks them up.

// The slider runs over the logarithm: 0 … 1000 is 1 … 10,000.
const toThreshold = (position) => Number((10 ** (position / 250)).toPrecision(3));
const toPosition = (threshold) => Math.round(250 * Math.log10(Math.max(1, Math.min(1e4, threshold))));
const RATIO_RULES = ["layer_ratio", "cumulative_ratio"];
const layerScores = () => data.whatIf[$("pick-task").value];
function resetWhatIf() {
  const scores = layerScores();
  for (const id of ["layers", "picture-layers"]) $(id).classList.toggle("off", !scores);
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
// A threshold below 1 would cut where sensitivity falls; it is allowed, but nobody asks for it.
function thresholds([low, high]) {
  if (low <= 1) return high === Infinity ? "" : ` below ${short(high)}`;
  return high === Infinity ? ` of at least ${short(low)}` : ` from ${short(low)} to just below ${short(high)}`;
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
    $("cut-finding").textContent = "These settings give no cut";
    for (const id of ["cut-sure", "cut-notes", "profile-chart", "layer-table"]) fill($(id));
    return;
  }
  const cut = cutOf(together.steps, settings, scores.layers.length);
  const ratios = together.ratios[settings.rule === "cumulative_ratio" ? settings.rule : "layer_ratio"];
  describeCut(scores, run.sites, cut);
  const notes = cutNotes(scores, seed, settings, normalise, reduce, cut);
  $("cut-sure").textContent = [...notes.sure, run.profiles.length ? "Blue: all sites; grey: single sites." : "Blue: all sites together."].join(" ");
  fill($("cut-notes"), ...[...notes.sure, ...notes.more].map((text) => el("li", {}, text)));
  drawProfile(scores, run, together, cut, ratios[cut - 1]);
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
  const where = Object.keys(data.sites).length > 1 ? ` on ${$("pick-task").value}` : "";
  $("cut-finding").textContent = `${scores.algorithm}${where}: ${cutFinding(scores.layers, cut)}`;
  $("cut-said").textContent =
    `Shared layers hold ${part} % of the parameters${scores.sendsPrivate ? ", but private_pull sends the rest too" : ""}: ` +
    `${size(scores.bytes * sent)} up and as much down per site and round, ` +
    `${size(2 * scores.bytes * sent * sites)} per round for ${counted(sites, "site")} (FedAvg: ${size(2 * scores.bytes * total * sites)}).`;
  $("cut-said").dataset.index = cut;
}
function cutFinding(layers, cut) {
  const named = (names, which) => (names.length <= 3 ? listed(names) : `the ${which} ${names.length} layers`);
  if (cut === layers.length) return "all layers are shared, as in FedAvg";
  if (cut === 0) return "no layer is shared, every site keeps the whole model";
  return `${named(layers.slice(0, cut), "first")} ${cut === 1 ? "is" : "are"} shared; ${named(layers.slice(cut), "last")} ${layers.length - cut === 1 ? "stays" : "stay"} private`;
}
// How sure the cut is, and what else there is to know about it.
function cutNotes(scores, seed, settings, normalise, reduce, cut) {
  const run = scores.runs[seed];
  const together = run.combined[`${normalise} ${reduce}`];
  const same = (sets) => sets.filter((steps) => cutOf(steps, settings, scores.layers.length) === cut).length;
  const runs = Object.values(scores.runs).map((other) => other.combined[`${normalise} ${reduce}`].steps);
  const cuts = runs.map((steps) => cutOf(steps, settings, scores.layers.length));
  const asRun = Object.keys(scores.runs).every((other, i) => scores.cuts[other] === undefined || scores.cuts[other] === cuts[i]);
  const free = settings.rule !== "fixed";
  const clear = transition(together.steps, settings) !== null;
  const range = thresholdRange(together.steps, settings);
  const other = normalise === "none" ? "first_layer" : "none";
  const elsewhere = cutOf(run.combined[`${other} ${reduce}`].steps, { ...settings, none: settings.none === "error" ? "all" : settings.none }, scores.layers.length);
  const near = range && Number.isFinite(settings.threshold)
    ? together.ratios[settings.rule].slice(0, cut).flatMap((r, i) => (r !== null && Math.abs(r - settings.threshold) <= scores.near * settings.threshold ? [i] : []))
    : [];
  const layers = (count) => (count === 1 ? "layer 1" : `${count} layers`);
  const sure = [
    settings.rule === "layer_ratio" && clear ? `The cut is before the first layer that is more than ${short(settings.threshold)} times as sensitive as the one before.` : null,
    clear ? null : "No ratio is above the threshold: there is no clear transition.",
    free && runs.length > 1 ? `${cuts.filter((one) => one === cut).length} of ${runs.length} runs ${asRun ? "cut" : "would cut"} here.` : null,
    free && run.alone.length > 1 ? `Deciding alone, ${same(run.alone)} of ${counted(run.sites, "site")} would cut here.` : null,
    range ? `Any threshold${thresholds(range)} gives this cut.` : null,
    scores.cuts[seed] !== undefined && scores.cuts[seed] !== cut ? `The run itself cut after ${layers(scores.cuts[seed])}.` : null,
  ];
  const more = [
    free && together.without.length ? `With one site left out, the cut stays the same in ${same(together.without)} of ${run.sites} cases.` : null,
    ...near.map((i) => `Close call at ${scores.layers[i + 1]}: its ratio ${short(together.ratios[settings.rule][i])} is within ${100 * scores.near} % of the threshold.`),
    ...together.warnings.map((text) => `${text}.`),
    free && elsewhere !== null && elsewhere !== cut ? `With the sites’ scores ${other === "none" ? "as measured" : "scaled to their first layer"}, the cut would be after ${layers(elsewhere)}.` : null,
    scores.remark,
    scores.leftOut ? `${counted(scores.leftOut, "more run")} did not fit on this page.` : null,
  ];
  return { sure: sure.filter(Boolean), more: more.filter(Boolean) };
}
function drawProfile(scores, run, together, cut, jump) {
  const positions = scores.layers.map((_, i) => i + 1);
  // What the rule compares, so that the curve jumps where the model is cut.
  const summed = $("pick-rule").value === "cumulative_ratio";
  const relative = (values) => {
    let sum = 0;
    const drawn = summed ? values.map((value) => (sum += value)) : values;
    const first = drawn.find((value) => value > 0);
    return drawn.map((value) => value / first);
  };
  const what = summed ? "sensitivity, summed from the input" : "sensitivity";
  const series = [
    ...run.profiles.map((values, i) => ({ name: `site ${i + 1}`, colour: "var(--axis)", x: positions, y: relative(values), faint: true })),
    { name: "all sites", colour: "var(--c1)", x: positions, y: relative(together.importance), markers: true },
  ];
  const alone = run.profiles.length;
  lineChart($("profile-chart"), {
    series, xLabel: "layer", xTitle: "", yLabel: `${what} (first layer = 1)`, log: true, format: short, tickFormat: powerOfTen,
    xTicks: [], xFormat: (p) => scores.layers[p - 1], from: [0.5, scores.layers.length + 0.5], sizes: { height: 310, bottom: 70 },
    alt: `Each layer’s ${what}, relative to the first layer, of all sites together: ${series[alone].y.map((y, i) => `${scores.layers[i]} ${short(y)}`).join(", ")}. The cut is after ${counted(cut, "layer")}${jump ? `, where it ${change(jump)}` : ""}.`,
    rule: (px, box) => [...strip(scores.layers, cut, px, box.height - box.bottom + 8), cutLine(px(cut + 0.5), box), ...(jump ? [jumpText(px(cut + 0.5), box, change(jump))] : [])],
  });
}
const change = (ratio) => `${ratio < 1 ? "falls" : "rises"} × ${short(ratio)}`;
// Above the points of the shared layers, which are low where there is a jump, if there is room beside the line.
function jumpText(x, box, text) {
  const fits = x - box.left > 7 * text.length + 6;
  return axisText({ x: x + (fits ? -6 : 6), y: box.top + 12, "text-anchor": fits ? "end" : "start", "font-weight": 600 }, text);
}
const cutLine = (x, box) => el("line", { x1: x, x2: x, y1: box.top, y2: box.height - box.bottom + 34, stroke: "var(--ink)", "stroke-width": 2, "stroke-dasharray": "6 4" });
// The layers as boxes from input to output, below the points of the chart.
function strip(layers, cut, px, top) {
  const wide = px(2) - px(1);
  const small = wide <= 44 ? 10 : 12;
  const names = cutAll(layers, ((wide - 6) * 12) / small);
  const named = wide > 26 && new Set(names).size === layers.length;
  const box = (_, i) => [
    el("rect", { x: px(i + 0.5) + 1, y: top, width: Math.max(1, wide - 2), height: 22, rx: 3, fill: i < cut ? "var(--shared)" : "var(--private)", stroke: i < cut ? "var(--c1)" : "var(--c2)" }),
    ...(named ? [axisText({ x: px(i + 1), y: top + 15, "text-anchor": "middle", "font-size": small }, names[i])]
      // Names that do not fit are in the table; numbers tell the layers apart.
      : wide > 13 ? [axisText({ x: px(i + 1), y: top + 15, "text-anchor": "middle", "font-size": 9 }, String(i + 1))] : []),
  ];
  // The longest of these texts that fits below its layers.
  const half = (texts, from, to) => {
    const [middle, wide] = [(px(from + 0.5) + px(to + 0.5)) / 2, px(to + 0.5) - px(from + 0.5)];
    const text = texts.find((one) => one.length * 6.8 + 12 < wide) ?? texts[texts.length - 1];
    const room = text.length * 3.4;
    return axisText({ x: Math.max(px(0.5) + room, Math.min(px(layers.length + 0.5) - room, middle)), y: top + 40, "text-anchor": "middle", "font-weight": 600 }, text);
  };
  return [
    ...layers.flatMap(box),
    ...(cut ? [half(["shared: sent and averaged", "shared: sent", "shared"], 0, cut)] : []),
    ...(cut < layers.length ? [half(["private: never leave their site", "private: not sent", "private"], cut, layers.length)] : []),
    axisText({ x: px(0.5), y: top + 56 }, "input"),
    axisText({ x: px(layers.length + 0.5), y: top + 56, "text-anchor": "end" }, "output"),
  ];
}
