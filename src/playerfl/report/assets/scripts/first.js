"use strict";
// The first screen: the answer, methods by score, and sites by what they gain. The layers are in what_if.js.

const MANY_METHODS = 6;
const MANY_SITES = 12;
const scoresOf = () => data.scores[$("pick-metric").value]?.tasks[$("pick-task").value];
// As in the tables.
const formatted = (metric) => (y) => minus(metric.percent ? (100 * y).toFixed(1) : Math.abs(y) < 1000 ? y.toFixed(3) : short(y));
const onAxis = (metric) => (y) => minus(metric.percent ? String(Number((100 * y).toPrecision(4))) : short(y));
const withSign = (format) => (y) => (y > 0 ? "+" : "") + format(y);
const ends = (low, high) => [numeric(low), numeric(high)];
const known = ([low, high]) => !Number.isNaN(low) && !Number.isNaN(high);

// The methods a reader looks for among many: the best here and over all tasks, the worst, the baselines, and the one the report is about.
function keptMethods() {
  const scored = (scoresOf()?.methods ?? []).map(([name, value]) => [name, numeric(value)]);
  if (data.algorithms.length <= MANY_METHODS || $("pick-methods").value === "all") return new Set(data.algorithms);
  const sign = metricOf().lower ? 1 : -1;
  const order = scored.sort((a, b) => sign * (a[1] - b[1])).map(([name]) => name);
  return new Set([data.subject, ...data.baselines, ...(data.scores[$("pick-metric").value]?.leaders ?? []), $("pick-algorithm").value, ...order.slice(0, 1), ...order.slice(-1)]);
}
function drawFirst() {
  $("answer").textContent = unbroken(data.scores[$("pick-metric").value]?.answer ?? "");
  drawMethods();
  drawGains();
}
function drawMethods() {
  const [metric, scores, kept] = [metricOf(), scoresOf(), keptMethods()];
  $("methods-finding").textContent = scores ? unbroken(scores.finding) : `There are no runs on ${$("pick-task").value} with this metric.`;
  if (!scores) return fill($("methods-chart")), fill($("methods-caption"));
  const { title } = data.scores[$("pick-metric").value];
  const baseline = scores.baseline.toLowerCase();
  const format = formatted(metric);
  const picked = $("pick-algorithm").value;
  const all = scores.methods.map(([name, value, low, high, first, last]) => ({
    name, value: numeric(value), runs: ends(low, high), rows: ends(first, last), colour: name === picked ? "var(--c1)" : "var(--axis)",
  }));
  const sign = metric.lower ? 1 : -1;
  const rows = all.filter(({ name }) => kept.has(name)).sort((a, b) => sign * (a.value - b.value) || 0);
  const over = [all.some((row) => known(row.runs)) && `thick: ${scores.over}`, all.some((row) => known(row.rows)) && "thin: 95 % interval over test rows"].filter(Boolean);
  dotChart($("methods-chart"), {
    rows, format, tickFormat: onAxis(metric), xLabels: [title, metric.name], rowLabel: "method",
    line: scores.majority === null ? null : { at: scores.majority, text: baseline },
    alt: `${scores.finding}. ${title}: ${rows.map((row) => `${row.name} ${Number.isFinite(row.value) ? format(row.value) : "diverged"}`).join(", ")}` +
      `${scores.majority === null ? "" : `, ${baseline} ${format(scores.majority)}`}.`,
  });
  const left = all.length - rows.length;
  $("methods-caption").textContent = `Dots: ${scores.runs > 1 ? "median over runs of the sites’ average" : "the sites’ average, in one run"}${over.length ? `; ${over.join(", ")}` : ""}.` +
    (scores.majority === null ? "" : ` Dashed: always predicting the ${scores.predicts}.`) +
    (rows.length > 1 && rows.some(({ name }) => name === picked) ? ` Blue: ${picked}, whose sites are shown next.` : "") +
    (left ? ` ${counted(left, "more method")}: choose “all” above.` : "");
}
function drawGains() {
  const [task, method] = ["pick-task", "pick-algorithm"].map((id) => $(id).value);
  const [metric, view] = [metricOf(), data.siteTables[task]?.[method]?.[$("pick-metric").value]];
  $("gains-finding").textContent = view?.finding ?? `There are no runs of ${method} on ${task} with this metric.`;
  if (!view) return fill($("gains-chart")), fill($("gains-caption"));
  const every = view.sites.flatMap((numbers, i) => {
    if (numbers === null) return [];
    const [clear, value, low = NaN, high = NaN, first = NaN, last = NaN] = numbers.map(numeric);
    const colour = !view.compared ? "var(--axis)" : value < 0 ? "var(--c2)" : "var(--c1)";
    return [{ name: textOf(view.rows[i][0]), value, runs: [low, high], rows: [first, last], colour, hollow: !clear }];
  });
  // Worst off first; of many sites, both ends.
  const rows = every.length > MANY_SITES ? [...every.slice(0, MANY_SITES / 2), ...every.slice(-MANY_SITES / 2)] : every;
  const patients = every.some((row) => known(row.rows));
  const interval = patients ? "95 % interval over the site’s test rows" : view.runs > 1 ? (view.runs < 6 ? `range of ${view.runs} runs` : "95 % interval over runs") : "";
  const shown = rows.map((row) => ({ ...row, runs: patients ? [NaN, NaN] : row.runs }));
  const signed = view.compared ? withSign : (format) => format;
  const format = signed(formatted(metric));
  const unit = metric.percent ? (view.compared ? ", percentage points" : ", %") : "";
  dotChart($("gains-chart"), {
    rows: shown, format, tickFormat: signed(onAxis(metric)), rowLabel: "site",
    xLabels: view.compared ? [" over training alone", ""].map((over) => `gain in ${lowered(metric.name)}${over}${unit}`) : [`${metric.name}${unit}`],
    line: view.compared ? { at: 0, text: "training alone", solid: true } : null,
    sides: view.compared ? ["← worse off", "better off →"] : null,
    alt: `${view.finding}. ${rows.map((row) => `${row.name} ${format(row.value)}`).join(", ")}.`,
  });
  const parts = [];
  if (view.compared && view.runs > 1) parts.push(`Dots: each site’s median over ${view.runs} runs, so their mean may differ from the methods’ difference.`);
  if (interval) parts.push(`Lines: ${interval}.`);
  if (view.compared) parts.push(patients ? "Hollow: the interval contains 0, so it may be chance." : "Hollow: may be chance.", metric.lower ? `Right is better for the site: a lower ${lowered(metric.name)}.` : "");
  if (view.compared) parts.push(`${data.baselines[0]} trains each site alone.`);
  if (every.length > rows.length) parts.push(`${every.length - rows.length} sites in between are in the table below.`);
  $("gains-caption").textContent = parts.filter(Boolean).join(" ");
}
