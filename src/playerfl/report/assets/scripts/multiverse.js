"use strict";
// The multiverse: a method's rank under every protocol, and the ranking under the protocols of one's choice.

const percent = (part) =>
  part === 0 || part === 1 ? `${100 * part} %` : part < 0.005 ? "< 1 %" : part > 0.995 ? "> 99 %" : `${Math.round(100 * part)} %`;
function quantile(sorted, part) {
  const at = part * (sorted.length - 1);
  const low = Math.floor(at);
  return sorted[low] + (at - low) * (sorted[Math.min(low + 1, sorted.length - 1)] - sorted[low]);
}
const ascending = (numbers) => [...numbers].sort((a, b) => a - b);
const rankText = (rank) => String(Number(rank.toFixed(2)));

// One entry for each multiverse on the page: a function that draws it again.
const multiverses = [];
function showMultiverse(home, universe) {
  if (!universe) {
    fill(home, el("p", { class: "small" }, "There are too many protocols to show here; the CSV report has them all."));
    return;
  }
  const method = el("select", {});
  options(method, universe.methods.map((name, i) => [i, name]), universe.subject);
  const picks = universe.factors.map((factor) => {
    const select = el("select", { "data-factor": factor.name });
    options(select, [["", "any"], ...factor.values.map((value, i) => [i, value])]);
    return select;
  });
  const reset = el("button", { type: "button" }, "Any protocol");
  const parts = { finding: el("h3"), chart: el("div"), caption: el("figcaption"), verdict: el("p", { class: "verdict", role: "status" }), table: el("table", { class: "grid ranking" }) };
  const figure = el("figure", { "data-file": "multiverse" }, parts.finding, parts.chart, parts.caption);
  fill(home,
    el("div", { class: "controls" }, el("label", {}, "Method ", method)),
    figure,
    el("h3", {}, "The ranking under protocols of your choice"),
    el("div", { class: "controls" }, ...universe.factors.map((factor, i) => el("label", {}, `${factor.label} `, picks[i])), reset),
    parts.verdict,
    el("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": "Ranking under the chosen protocols" }, parts.table));
  const wanted = () => picks.map((select) => (select.value === "" ? null : Number(select.value)));
  const choose = (choices) => {
    picks.forEach((select, i) => { select.value = choices === null ? "" : String(choices[i]); });
    draw();
  };
  const draw = () => {
    const focus = Number(method.value);
    const choices = wanted();
    const matching = universe.protocols.map((p) => p.choices.every((c, i) => choices[i] === null || choices[i] === c));
    drawCurve(universe, parts, focus, matching, choose);
    drawRanking(universe, parts, focus, matching);
  };
  for (const select of [method, ...picks]) select.addEventListener("change", draw);
  reset.addEventListener("click", () => choose(null));
  multiverses.push(draw);
  addTools(figure);
  draw();
}

function scoreText(universe, protocol, i) {
  const score = protocol.scores[i];
  if (score === null) return "diverged";
  return universe.percent[protocol.choices[universe.measure]] ? `${(100 * score).toFixed(1)} %` : Math.abs(score) < 1000 ? score.toFixed(3) : short(score);
}

// The method's rank by protocol, best first, above a matrix of the choices; what does not match is faint.
function drawCurve(universe, parts, focus, matching, choose) {
  const { protocols, methods, factors, orders, medians } = universe;
  const order = orders[focus];
  const name = methods[focus];
  const { width } = boxOf(parts.chart);
  const wide = width > 600;
  const [left, right, top, tall, row] = [wide ? 150 : 98, wide ? 58 : 54, 12, wide ? 200 : 170, 16];
  const rows = factors.flatMap((factor, f) => (factor.values.length > 1 ? [[f, null], ...factor.values.map((_, v) => [f, v])] : []));
  const below = top + tall + 38;
  const height = below + rows.length * row + (wide ? 24 : 40);
  const px = (i) => left + (i / order.length) * (width - left - right);
  const py = (rank) => top + ((rank - 0.5) / methods.length) * tall;
  const steps = (ranks) => ranks.map((rank, i) => `${i && ranks[i - 1] === rank ? "" : `${i ? "L" : "M"}${px(i).toFixed(1)} ${py(rank).toFixed(1)}`}L${px(i + 1).toFixed(1)} ${py(rank).toFixed(1)}`).join("");
  const alt = `${universe.findings[focus]}. Its rank under ${counted(order.length, "protocol")}, best first, above the choices of each. Arrow keys read single protocols, Enter chooses one.`;
  const svg = el("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": alt, tabindex: "0", style: wide ? null : "font-size: 10.5px" });
  const every = Math.max(1, Math.ceil(methods.length / 8));
  for (let rank = 1; rank <= methods.length; rank += every) {
    svg.append(
      el("line", { x1: left, x2: width - right, y1: py(rank), y2: py(rank), stroke: "var(--grid)" }),
      el("text", { x: left - 7, y: py(rank) + 4, "text-anchor": "end" }, String(rank)),
    );
  }
  svg.append(el("text", { transform: `translate(${wide ? 100 : 66} ${top + tall / 2}) rotate(-90)`, "text-anchor": "middle" }, "rank (1 is best)"));
  const rival = universe.rivals[focus];
  const inItsOrder = (m, look) => svg.append(el("path", { d: steps(ascending(protocols.map((p) => p.ranks[m]))), fill: "none", ...look }));
  for (const m of methods.keys()) if (m !== focus && m !== rival) inItsOrder(m, { stroke: "var(--line)", "stroke-width": 0.8 });
  if (rival !== null) inItsOrder(rival, { stroke: "var(--green)", "stroke-width": 1.6, "stroke-dasharray": "5 2" });
  // Stretches of protocols for which `test` holds, as one path of boxes or lines.
  const stretches = (test, box) => {
    let path = "";
    for (let i = 0; i < order.length; i += 1) {
      if (!test(protocols[order[i]], order[i])) continue;
      const start = i;
      while (i + 1 < order.length && test(protocols[order[i + 1]], order[i + 1])) i += 1;
      path += box(start, i + 1);
    }
    return path;
  };
  const all = matching.every(Boolean);
  const ranks = order.map((p) => protocols[p].ranks[focus]);
  svg.append(el("path", { d: steps(ranks), fill: "none", stroke: "var(--c1)", "stroke-width": all ? 2.8 : 1.6, opacity: all ? 1 : 0.4 }));
  if (!all) {
    // A single protocol among hundreds is narrower than a pixel, so its mark has a least width.
    const least = Math.max(px(1) - px(0), 4);
    const marks = ranks.map((rank, i) => (matching[order[i]] ? `M${((px(i) + px(i + 1) - least) / 2).toFixed(1)} ${py(rank).toFixed(1)}h${least.toFixed(1)}` : "")).join("");
    svg.append(el("path", { d: marks, fill: "none", stroke: "var(--c1)", "stroke-width": 6 }));
  }
  if (rows.length) svg.append(el("text", { x: width - right + 8, y: below - 18 }, "median"), el("text", { x: width - right + 8, y: below - 5 }, "rank"));
  const decisive = universe.decidedBy[focus];
  rows.forEach(([f, v], r) => {
    const y = below + r * row;
    const colour = f === decisive ? "var(--red)" : "var(--soft)";
    if (v === null) {
      svg.append(
        el("line", { x1: 0, x2: width, y1: y, y2: y, stroke: "var(--line)" }),
        el("text", { x: left - 7, y: y + 13, "text-anchor": "end", "font-weight": "700", style: `fill: ${colour}` }, shortened(factors[f].label, wide ? 19 : 15)),
      );
      return;
    }
    const box = (a, b) => `M${px(a).toFixed(1)} ${y + 3}H${px(b).toFixed(1)}v${row - 5}H${px(a).toFixed(1)}Z`;
    svg.append(el("text", { x: left - 7, y: y + 13, "text-anchor": "end" }, shortened(factors[f].values[v], wide ? 20 : 14)));
    if (!all) svg.append(el("path", { d: stretches((p, i) => p.choices[f] === v && !matching[i], box), fill: colour, opacity: 0.2 }));
    svg.append(el("path", { d: stretches((p, i) => p.choices[f] === v && matching[i], box), fill: colour }));
    const median = medians[focus][f][v];
    svg.append(el("text", { x: width - right + 8, y: y + 13 }, median === null ? "–" : rankText(median)));
  });
  const foot = below + rows.length * row;
  svg.append(
    el("line", { x1: left, x2: width - right, y1: foot + 2, y2: foot + 2, stroke: "var(--axis)" }),
    el("text", { x: left, y: foot + 17 }, "1"),
    el("text", { x: width - right, y: foot + 17, "text-anchor": "end" }, order.length.toLocaleString("en")),
    el("text", { x: (left + width - right) / 2, y: foot + (wide ? 17 : 34), "text-anchor": "middle" }, shortened(`protocols, sorted by the rank of ${name}`, wide ? 80 : 50)),
  );
  const cursor = el("line", { y1: top, y2: foot, stroke: "var(--ink)", "stroke-dasharray": "3 3", visibility: "hidden" });
  svg.append(cursor);
  const show = (i, x, y) => {
    const protocol = protocols[order[i]];
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, px(i + 0.5));
    cursor.setAttribute("visibility", "visible");
    tip(x, y, `${name}: rank ${protocol.ranks[focus]} of ${methods.length}, ${scoreText(universe, protocol, focus)}`,
      factors.map((factor, f) => `${factor.label}: ${factor.values[protocol.choices[f]]}`));
  };
  const browsing = browsable(svg, {
    count: order.length, start: -1, back: "ArrowLeft", forth: "ArrowRight", show,
    under: (x) => Math.max(0, Math.min(order.length - 1, Math.floor(((x - left) / (width - left - right)) * order.length))),
    place: (i) => [px(i + 0.5), 30],
    hide: () => cursor.setAttribute("visibility", "hidden"),
  });
  const take = () => {
    const { choices } = protocols[order[browsing.at()]];
    browsing.end();
    choose(choices);
  };
  // A click comes after the pointer has moved there.
  svg.addEventListener("click", () => browsing.at() >= 0 && take());
  svg.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || browsing.at() < 0) return;
    take();
    // The chosen protocol is drawn again, and must not take the focus away.
    parts.chart.querySelector("svg").focus();
  });
  numbersOf.set(svg, [
    ["rank", "score", ...factors.map((factor) => factor.label)],
    ...order.map((p) => [protocols[p].ranks[focus], protocols[p].scores[focus], ...factors.map((factor, f) => factor.values[protocols[p].choices[f]])]),
  ]);
  parts.finding.textContent = universe.findings[focus];
  fill(parts.chart, svg);
  parts.caption.textContent =
    `Blue: ${name}${rival === null ? "" : `; green, dashed: ${methods[rival]}, the best of the others; grey: the rest; these are in their own order`}. Below, a mark shows which choice a protocol makes; ` +
    `the median rank on the right is that of ${name} over the protocols with this choice` +
    `${decisive === null ? "" : "; orange: the choice that matters most"}. Click a protocol to choose it.`;
}

// Methods by mean rank under one protocol, or by the distribution of their ranks over several.
function drawRanking(universe, parts, focus, matching) {
  const { methods } = universe;
  const chosen = universe.protocols.filter((_, i) => matching[i]);
  if (!chosen.length) {
    parts.verdict.textContent = "No protocol makes these choices.";
    fill(parts.table);
    return;
  }
  const measures = new Set(chosen.map((p) => p.choices[universe.measure]));
  const lines = methods.map((name, m) => {
    const ranks = ascending(chosen.map((p) => p.ranks[m]));
    const known = chosen.map((p) => p.scores[m]).filter((score) => score !== null);
    const score = known.length < chosen.length ? null : quantile(ascending(known), 0.5);
    return { m, name, ranks, score, median: quantile(ranks, 0.5), mean: chosen.reduce((sum, p) => sum + p.meanRanks[m], 0) / chosen.length };
  });
  const single = chosen.length === 1;
  lines.sort((a, b) => (single ? 0 : a.median - b.median) || a.mean - b.mean);
  const share = (line, most) => line.ranks.filter((rank) => rank <= most).length / chosen.length;
  const about = lines.find((line) => line.m === focus);
  const leaders = lines.filter((line) => line.ranks[0] === 1).map((line) => line.name);
  const range = (line) => [...new Set([line.ranks[0], line.ranks[chosen.length - 1]])].join(" to ");
  parts.verdict.textContent = single
    ? `One protocol: ${listed(leaders)} ${leaders.length > 1 ? "share the first rank" : "is first"}; ${about.name} has rank ${about.ranks[0]} of ${methods.length} (mean rank ${about.mean.toFixed(2)}).`
    : `${chosen.length.toLocaleString("en")} of ${universe.protocols.length.toLocaleString("en")} protocols: ${about.name} has median rank ${rankText(about.median)} (${range(about)}) and is first in ${percent(share(about, 1))}.`;
  const oneMeasure = measures.size === 1;
  const scored = (line) => {
    const text = line.score === null ? "diverged" : scoreText(universe, { choices: chosen[0].choices, scores: [line.score] }, 0);
    return [text, line.score];
  };
  const measure = oneMeasure ? universe.factors[universe.measure].values[[...measures][0]] : "";
  const tone = (line) => (line.m === focus ? "best" : "");
  const heads = single
    ? [["method", true], ["rank", false], ["mean rank", false], [measure, false]]
    : [["method", true], ["median rank", false], ["range", false], [`ranks 1 to ${methods.length}`, false], ["1st", false], ["top 3", false], ...(oneMeasure ? [[`median ${measure}`, false]] : [])];
  fillTable(parts.table, heads, lines.map((line) => single
    ? [[line.name, "", [], tone(line)], [String(line.ranks[0]), line.ranks[0]], [line.mean.toFixed(2), line.mean], scored(line)]
    : [[line.name, "", [], tone(line)], [rankText(line.median), line.median], [range(line), line.ranks[0]],
        [rankStrip(line, methods.length), line.median], [percent(share(line, 1)), share(line, 1)], [percent(share(line, 3)), share(line, 3)], ...(oneMeasure ? [scored(line)] : [])]));
  makeSortable(parts.table);
}
// The range of ranks as a line, the middle half as a bar, the median as a dot; the numbers are in the same row.
function rankStrip(line, count) {
  const x = (rank) => 6 + ((rank - 1) / Math.max(1, count - 1)) * 148;
  const [low, high] = [quantile(line.ranks, 0.25), quantile(line.ranks, 0.75)];
  return el("svg", { viewBox: "0 0 160 16", class: "strip", "aria-hidden": "true" },
    el("line", { x1: x(1), x2: x(count), y1: 8, y2: 8, stroke: "var(--grid)" }),
    el("line", { x1: x(line.ranks[0]), x2: x(line.ranks[line.ranks.length - 1]), y1: 8, y2: 8, stroke: "var(--axis)", "stroke-width": 1.5 }),
    el("rect", { x: x(low) - 1, width: x(high) - x(low) + 2, y: 4, height: 8, fill: "var(--c6)" }),
    el("circle", { cx: x(line.median), cy: 8, r: 4, fill: "var(--blue)" }));
}
