"use strict";
// Line charts and dot plots, with values under the pointer and by arrow keys.

// As wide as the screen allows, so that text keeps its size on a phone.
const boxOf = (home) => ({ width: Math.max(260, Math.min(900, home.clientWidth || 900)), height: 380, left: 62, right: 16, top: 14, bottom: 46 });
const axisText = (attributes, text) => el("text", { "font-size": 12, ...attributes }, text);
function ticks(low, high, count = 6) {
  const span = high - low || Math.abs(high) || 1;
  const raw = span / count;
  const base = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * base).find((s) => s >= raw);
  const marks = [];
  // Multiples, not sums: adding up steps misses 0 by a rounding error, which would be the label.
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1) marks.push(Number((k * step).toPrecision(12)));
  return marks;
}
function logTicks(low, high) {
  const marks = [];
  const decades = Math.ceil(Math.log10(high)) - Math.floor(Math.log10(low));
  const every = Math.max(1, Math.ceil(decades / 6));
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e += every) marks.push(10 ** e);
  const inside = (all) => all.filter((t) => t >= low * 0.999 && t <= high * 1.001);
  // One number does not show that an axis is logarithmic.
  return inside(marks).length > 1 ? inside(marks) : inside(marks.flatMap((t) => [t, 2 * t, 5 * t]));
}
// The ends of an axis: a little more than the values need.
function domain(values, log) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  // A hundredth is a percentage point.
  if (low === 0 && high === 0) return [-0.01, 0.01];
  if (low === high) return log ? [low / 2, high * 2] : [low - Math.abs(low) * 0.05 - 1e-9, high + Math.abs(high) * 0.05 + 1e-9];
  return log ? [low / 1.3, high * 1.3] : [low - 0.04 * (high - low), high + 0.04 * (high - low)];
}
// A value's place between two pixels; infinite values stay at the edge.
function scaleOf([low, high], log, from, to) {
  const of = log ? Math.log : (y) => y;
  return (y) => from + Math.max(0, Math.min(1, (of(y) - of(low)) / (of(high) - of(low)))) * (to - from);
}

// Steps through the marks of a chart, by pointer or by arrow keys; `under` finds the mark at a place in the drawing, and
// `place` the place of a mark.
function browsable(svg, { count, start, under, place, show, hide, back, forth }) {
  const box = svg.viewBox.baseVal;
  let at = start;
  const go = (i, left, top) => { at = i; show(i, left, top); };
  const end = () => { hide(); $("tip").hidden = true; };
  svg.addEventListener("pointermove", (event) => {
    const home = svg.getBoundingClientRect();
    go(under(((event.clientX - home.left) / home.width) * box.width, ((event.clientY - home.top) / home.height) * box.height), event.pageX, event.pageY);
  });
  svg.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return end();
    const next = { [back]: at - 1, [forth]: at + 1, Home: 0, End: count - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    const i = Math.max(0, Math.min(count - 1, next));
    const home = svg.getBoundingClientRect();
    const [x, y] = place(i);
    go(i, window.scrollX + home.left + (x / box.width) * home.width, window.scrollY + home.top + (y / box.height) * home.height);
  });
  svg.addEventListener("pointerleave", end);
  svg.addEventListener("blur", end);
  return { at: () => at, end };
}

// series: [{name, colour, dash, x: [], y: [], low: [], high: [], markers, faint, end}]
function lineChart(home, { series, xLabel, yLabel, xTitle = xLabel, xTicks, log = false, format, tickFormat = format, alt, xFormat = String, rule, from, sizes = {} }) {
  const BOX = { ...boxOf(home), ...sizes };
  const drawn = (y) => Number.isFinite(y) && (!log || y > 0);
  const good = series.flatMap((s) => [...s.y, ...(s.low ?? []), ...(s.high ?? []), ...(s.end === undefined ? [] : [s.end])]).filter(drawn);
  const xs = [...new Set(series.flatMap((s) => s.x))].sort((a, b) => a - b);
  if (!good.length || !xs.length) return fill(home, el("p", { class: "small" }, "Nothing to draw: there are no finite values."));
  const [low, high] = domain(good, log);
  const yTicks = log ? logTicks(low, high) : ticks(low, high);
  // Room for the longest number beside the axis title.
  BOX.left = Math.max(BOX.left, 30 + 8 * Math.max(...yTicks.map((t) => tickFormat(t).length)));
  const [x0, x1] = from ?? [xs[0], xs[xs.length - 1] === xs[0] ? xs[0] + 1 : xs[xs.length - 1]];
  const px = (x) => BOX.left + ((x - x0) / (x1 - x0)) * (BOX.width - BOX.left - BOX.right);
  const py = scaleOf([low, high], log, BOX.height - BOX.bottom, BOX.top);
  const svg = el("svg", { viewBox: `0 0 ${BOX.width} ${BOX.height}`, role: "img", "aria-label": alt, tabindex: "0" });
  for (const t of yTicks) {
    svg.append(
      el("line", { x1: BOX.left, x2: BOX.width - BOX.right, y1: py(t), y2: py(t), stroke: "var(--grid)" }),
      axisText({ x: BOX.left - 7, y: py(t) + 4, "text-anchor": "end" }, tickFormat(t)),
    );
  }
  for (const t of xTicks ?? ticks(x0, x1, BOX.width / 110).filter(Number.isInteger)) {
    svg.append(axisText({ x: px(t), y: BOX.height - BOX.bottom + 18, "text-anchor": "middle" }, xFormat(t)));
  }
  svg.append(
    el("line", { x1: BOX.left, x2: BOX.width - BOX.right, y1: BOX.height - BOX.bottom, y2: BOX.height - BOX.bottom, stroke: "var(--axis)" }),
    axisText({ x: (BOX.left + BOX.width) / 2, y: BOX.height - 8, "text-anchor": "middle" }, xTitle),
    axisText({ transform: `translate(14 ${(BOX.top + BOX.height - BOX.bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, yLabel),
  );
  if (rule) svg.append(...rule(px, BOX));
  for (const s of series) {
    if (s.low) {
      const known = s.x.map((x, i) => [x, s.low[i], s.high[i]]).filter(([, a, b]) => drawn(a) && drawn(b));
      const band = [...known.map(([x, a]) => `${px(x)},${py(a)}`), ...known.reverse().map(([x, , b]) => `${px(x)},${py(b)}`)];
      svg.append(el("polygon", { points: band.join(" "), fill: s.colour, opacity: series.length > 6 ? 0.06 : 0.13 }));
    }
    // A gap in the numbers is a gap in the line.
    let path = "";
    let pen = "M";
    s.x.forEach((x, i) => {
      if (!drawn(s.y[i])) { pen = "M"; return; }
      path += `${pen}${px(x).toFixed(1)} ${py(s.y[i]).toFixed(1)}`;
      pen = "L";
    });
    svg.append(el("path", { d: path, fill: "none", stroke: s.colour, "stroke-width": s.faint ? 1 : 2.2, "stroke-dasharray": s.dash || null, opacity: s.faint ? 0.45 : 1 }));
    if (s.markers || s.x.length === 1) {
      s.x.forEach((x, i) => drawn(s.y[i]) && svg.append(el("circle", { cx: px(x), cy: py(s.y[i]), r: 4, fill: s.colour })));
    }
    if (drawn(s.end ?? NaN)) {
      const [cx, cy] = [px(x1), py(s.end)];
      svg.append(el("path", { d: `M${cx} ${cy - 6}L${cx + 6} ${cy}L${cx} ${cy + 6}L${cx - 6} ${cy}Z`, fill: s.colour }));
    }
  }
  const cursor = el("line", { y1: BOX.top, y2: BOX.height - BOX.bottom, stroke: "var(--axis)", "stroke-dasharray": "3 3", visibility: "hidden" });
  svg.append(cursor);
  const values = (x) =>
    series.filter((s) => !s.faint).map((s) => [s.name, s.y[s.x.indexOf(x)]]).filter(([, y]) => y !== undefined);
  browsable(svg, {
    count: xs.length, start: xs.length - 1, back: "ArrowLeft", forth: "ArrowRight",
    under: (x) => {
      const value = x0 + ((x - BOX.left) / (BOX.width - BOX.left - BOX.right)) * (x1 - x0);
      return xs.reduce((best, other, i) => (Math.abs(other - value) < Math.abs(xs[best] - value) ? i : best), 0);
    },
    place: (i) => [px(xs[i]), 30],
    show: (i, left, top) => {
      for (const end of ["x1", "x2"]) cursor.setAttribute(end, px(xs[i]));
      cursor.setAttribute("visibility", "visible");
      tip(left, top, `${xLabel} ${xFormat(xs[i])}`, values(xs[i]).map(([name, y]) => `${name}: ${Number.isFinite(y) ? format(y) : "diverged"}`));
    },
    hide: () => cursor.setAttribute("visibility", "hidden"),
  });
  numbersOf.set(svg, [
    [xLabel, ...series.flatMap((s) => (s.low ? [s.name, `${s.name} low`, `${s.name} high`] : [s.name]))],
    ...xs.map((x) => [xFormat(x), ...series.flatMap((s) => { const i = s.x.indexOf(x); return s.low ? [s.y[i], s.low[i], s.high[i]] : [s.y[i]]; })]),
  ]);
  fill(home, svg);
}

// One value a hundred times the others would push them into one point: it is drawn as an arrow at the edge.
function withoutOutliers(values) {
  const sizes = values.map(Math.abs).sort((a, b) => a - b);
  const middle = sizes[Math.floor(sizes.length / 2)];
  return middle > 0 && sizes[sizes.length - 1] > 50 * middle ? values.filter((x) => Math.abs(x) <= 5 * middle) : values;
}
const beyond = (x, y, side, colour) => el("path", { d: `M${x - side * 9} ${y - 6}l${side * 9} 6l${-side * 9} 6Z`, fill: colour });

// The first of these texts that fits; the last, shortened, if none does.
const fitting = (texts, width) => texts.find((text) => text.length * 6.5 < width) ?? shortened(texts[texts.length - 1], Math.floor(width / 6.5));

// Measured, since letters differ: a name in capitals or in Chinese is twice as wide as others of its length.
const pen = document.createElement("canvas").getContext("2d");
function widthOf(text) {
  pen.font = "12px system-ui, sans-serif";
  return pen.measureText(text).width;
}
function cutTo(text, room, tail = "") {
  if (widthOf(text) <= room) return text;
  const letters = [...text];
  while (letters.length > 1 && widthOf(`${letters.join("")}…${tail}`) > room) letters.pop();
  return `${letters.join("").trimEnd()}…${tail}`;
}
// Names that differ only at their ends or in between keep that part, or all would look the same.
function cutAll(names, room) {
  const apart = (cut) => new Set(cut).size === new Set(names).size;
  const cut = names.map((name) => cutTo(name, room));
  if (apart(cut)) return cut;
  const ends = names.map((name) => {
    const tail = [...name];
    while (tail.length > 1 && widthOf(tail.join("")) > room / 2) tail.shift();
    return cutTo(name, room, tail.join("").trimStart());
  });
  if (apart(ends)) return ends;
  return ends.map((end, i) => {
    const alike = names.filter((name, j) => ends[j] === end && name !== names[i]);
    if (!alike.length) return end;
    const letters = [...names[i]];
    const at = [...letters, ""].findIndex((letter, k) => alike.some((other) => [...other][k] !== letter));
    const word = Math.max(at - 5, letters.lastIndexOf(" ", at) + 1);
    return `${cutTo(names[i], room / 3)}${cutTo(letters.slice(word).join(""), (2 * room) / 3)}`;
  });
}

// rows: [{name, value, runs: [low, high], rows: [low, high], colour, hollow}], drawn from top to bottom
function dotChart(home, { rows, xLabels, rowLabel, format, tickFormat, line, sides, alt }) {
  const { width } = boxOf(home);
  const spans = (row) => [row.runs, row.rows].filter(known);
  const good = [...rows.flatMap((row) => [row.value, ...spans(row).flat()]), ...(line ? [line.at] : [])].filter(Number.isFinite);
  if (!good.length) return fill(home, el("p", { class: "small" }, "Nothing to draw: there are no finite values."));
  // Of a method in a file of the reader's own, the class is what tells it apart.
  const classes = rows.map((row) => row.name.replace(/^.*\.py:/, ""));
  const names = new Set(classes).size === rows.length ? classes : rows.map((row) => row.name);
  const room = Math.min(Math.max(...names.map(widthOf)), width > 380 ? Math.max(125, 0.35 * width) : 98);
  const labels = cutAll(names, room);
  const [left, right, top, row] = [room + 14, 52, line || sides ? 34 : 12, Math.max(19, Math.min(50, 240 / rows.length))];
  const foot = top + rows.length * row;
  const height = foot + 46;
  const label = fitting(xLabels, width);
  const [low, high] = domain(withoutOutliers(good), false);
  const px = scaleOf([low, high], false, left, width - right);
  const py = (i) => top + (i + 0.5) * row;
  const svg = el("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${alt} Use the up and down arrow keys to read single values.`, tabindex: "0" });
  for (const t of ticks(low, high, width / 75)) {
    svg.append(el("line", { x1: px(t), x2: px(t), y1: top, y2: foot, stroke: "var(--grid)" }), axisText({ x: px(t), y: foot + 16, "text-anchor": "middle" }, tickFormat(t)));
  }
  svg.append(
    el("line", { x1: left, x2: width - right, y1: foot, y2: foot, stroke: "var(--axis)" }),
    // A long label may be wider than the axis, but not wider than the chart.
    axisText({ x: Math.max(label.length * 3.2, Math.min((left + width - right) / 2, width - label.length * 3.2)), y: height - 8, "text-anchor": "middle" }, label),
  );
  if (line) {
    svg.append(el("line", { x1: px(line.at), x2: px(line.at), y1: top - 4, y2: foot, stroke: "var(--ink)", "stroke-width": 1.2, "stroke-dasharray": line.solid ? null : "4 3" }));
    if (!sides) {
      const half = (line.text.length + 8) * 3.1;
      svg.append(axisText({ x: Math.max(half, Math.min(width - half, px(line.at))), y: top - 10, "text-anchor": "middle" }, `${line.text} ${format(line.at)}`));
    }
  }
  if (sides) {
    svg.append(axisText({ x: left, y: top - 14, style: "fill: var(--red)" }, sides[0]), axisText({ x: width - 4, y: top - 14, "text-anchor": "end", style: "fill: var(--blue)" }, sides[1]));
  }
  const cursor = el("rect", { x: 0, width, height: row, fill: "var(--wash)", visibility: "hidden" });
  svg.prepend(cursor);
  const shown = (value) => (Number.isFinite(value) ? format(value) : value === undefined || Number.isNaN(value) ? "–" : sides ? (value > 0 ? "+∞" : "−∞") : "diverged");
  rows.forEach((one, i) => {
    const y = py(i);
    svg.append(axisText({ x: left - 8, y: y + 4, "text-anchor": "end" }, labels[i]));
    // With ends, so that a short interval is seen behind its dot.
    if (known(one.rows)) svg.append(el("path", { d: one.rows.map((x) => `M${px(x)},${y - 7}v14`).join("") + `M${px(one.rows[0])},${y}H${px(one.rows[1])}`, stroke: one.colour, "stroke-width": 1.6 }));
    if (known(one.runs)) svg.append(el("line", { x1: px(one.runs[0]), x2: px(one.runs[1]), y1: y, y2: y, stroke: one.colour, "stroke-width": 5, "stroke-opacity": 0.45 }));
    // A method that diverged has no place on the axis.
    if ((sides || Number.isFinite(one.value)) && (one.value < low || one.value > high)) svg.append(beyond(px(one.value), y, one.value > high ? 1 : -1, one.colour));
    else if (Number.isFinite(one.value)) svg.append(el("circle", { cx: px(one.value), cy: y, r: 5.5, fill: one.hollow ? "var(--back)" : one.colour, stroke: one.colour, "stroke-width": 2 }));
    svg.append(axisText({ x: width - 2, y: y + 4, "text-anchor": "end", "font-weight": 600 }, shown(one.value)));
  });
  browsable(svg, {
    count: rows.length, start: -1, back: "ArrowUp", forth: "ArrowDown",
    under: (_, y) => Math.max(0, Math.min(rows.length - 1, Math.floor((y - top) / row))),
    place: (i) => [left, py(i) + row / 2],
    show: (i, x, y) => {
      cursor.setAttribute("y", py(i) - row / 2);
      cursor.setAttribute("visibility", "visible");
      const of = (name, span) => (known(span) ? [`${name}: ${shown(span[0])} to ${shown(span[1])}`] : []);
      tip(x, y, `${rows[i].name}: ${shown(rows[i].value)}`, [...of("over runs", rows[i].runs), ...of("over test rows", rows[i].rows)]);
    },
    hide: () => cursor.setAttribute("visibility", "hidden"),
  });
  numbersOf.set(svg, [
    [rowLabel, "value", "runs_low", "runs_high", "rows_low", "rows_high"],
    ...rows.map((one) => [one.name, one.value, ...one.runs, ...one.rows]),
    ...(line && !sides ? [[line.text, line.at]] : []),
  ]);
  fill(home, svg);
}
function tip(left, top, title, lines) {
  const box = $("tip");
  fill(box, el("b", {}, title), ...lines.slice(0, 24).map((line) => el("div", {}, line)));
  box.hidden = false;
  const room = document.documentElement.clientWidth - box.offsetWidth - 8;
  box.style.left = `${Math.max(4, Math.min(left + 14, room))}px`;
  box.style.top = `${top + 14}px`;
}
