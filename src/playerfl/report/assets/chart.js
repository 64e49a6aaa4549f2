"use strict";
// Line charts with values under the pointer and by arrow keys.

// As wide as the screen allows, so that text keeps its size on a phone.
const boxOf = (home) => ({ width: Math.max(260, Math.min(900, home.clientWidth || 900)), height: 380, left: 62, right: 16, top: 14, bottom: 46 });
function ticks(low, high, count = 6) {
  const span = high - low || Math.abs(high) || 1;
  const raw = span / count;
  const base = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * base).find((s) => s >= raw);
  const marks = [];
  for (let t = Math.ceil(low / step - 1e-9) * step; t <= high + step * 1e-9; t += step) marks.push(Number(t.toPrecision(12)));
  return marks;
}
function logTicks(low, high) {
  const marks = [];
  const decades = Math.ceil(Math.log10(high)) - Math.floor(Math.log10(low));
  const every = Math.max(1, Math.ceil(decades / 6));
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e += every) marks.push(10 ** e);
  return marks.filter((t) => t >= low * 0.999 && t <= high * 1.001);
}

// series: [{name, colour, dash, x: [], y: [], low: [], high: [], markers, faint, end}]
function lineChart(home, { series, xLabel, yLabel, xTicks, log = false, format, alt, xFormat = String, rule, from }) {
  const BOX = boxOf(home);
  const all = series.flatMap((s) => [...s.y, ...(s.low ?? []), ...(s.high ?? []), ...(s.end === undefined ? [] : [s.end])]);
  const good = all.filter((y) => Number.isFinite(y) && (!log || y > 0));
  const xs = [...new Set(series.flatMap((s) => s.x))].sort((a, b) => a - b);
  if (!good.length || !xs.length) return fill(home, el("p", { class: "small" }, "Nothing to draw: there are no finite values."));
  let [low, high] = [Math.min(...good), Math.max(...good)];
  if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - Math.abs(low) * 0.05 - 1e-9, high + Math.abs(high) * 0.05 + 1e-9];
  else if (!log) [low, high] = [low - 0.04 * (high - low), high + 0.04 * (high - low)];
  else [low, high] = [low / 1.3, high * 1.3];
  const [x0, x1] = from ?? [xs[0], xs[xs.length - 1] === xs[0] ? xs[0] + 1 : xs[xs.length - 1]];
  const px = (x) => BOX.left + ((x - x0) / (x1 - x0)) * (BOX.width - BOX.left - BOX.right);
  const scale = log ? Math.log : (y) => y;
  const py = (y) => BOX.top + (1 - (scale(y) - scale(low)) / (scale(high) - scale(low))) * (BOX.height - BOX.top - BOX.bottom);
  const svg = el("svg", { viewBox: `0 0 ${BOX.width} ${BOX.height}`, role: "img", "aria-label": alt, tabindex: "0" });
  for (const t of log ? logTicks(low, high) : ticks(low, high)) {
    svg.append(
      el("line", { x1: BOX.left, x2: BOX.width - BOX.right, y1: py(t), y2: py(t), stroke: "#e4e8ec" }),
      el("text", { x: BOX.left - 7, y: py(t) + 4, "text-anchor": "end" }, format(t)),
    );
  }
  for (const t of xTicks ?? ticks(x0, x1, BOX.width / 110).filter(Number.isInteger)) {
    svg.append(el("text", { x: px(t), y: BOX.height - BOX.bottom + 18, "text-anchor": "middle" }, xFormat(t)));
  }
  svg.append(
    el("line", { x1: BOX.left, x2: BOX.width - BOX.right, y1: BOX.height - BOX.bottom, y2: BOX.height - BOX.bottom, stroke: "#57606a" }),
    el("text", { x: (BOX.left + BOX.width) / 2, y: BOX.height - 8, "text-anchor": "middle" }, xLabel),
    el("text", { transform: `translate(14 ${BOX.height / 2}) rotate(-90)`, "text-anchor": "middle" }, yLabel),
  );
  if (rule) svg.append(...rule(px, BOX));
  const drawn = (y) => Number.isFinite(y) && (!log || y > 0);
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
  const cursor = el("line", { y1: BOX.top, y2: BOX.height - BOX.bottom, stroke: "#57606a", "stroke-dasharray": "3 3", visibility: "hidden" });
  svg.append(cursor);
  const values = (x) =>
    series.filter((s) => !s.faint).map((s) => [s.name, s.y[s.x.indexOf(x)]]).filter(([, y]) => y !== undefined);
  let at = xs.length - 1;
  const show = (i, left, top) => {
    at = i;
    cursor.setAttribute("x1", px(xs[i]));
    cursor.setAttribute("x2", px(xs[i]));
    cursor.setAttribute("visibility", "visible");
    tip(left, top, `${xLabel} ${xFormat(xs[i])}`, values(xs[i]).map(([name, y]) => `${name}: ${Number.isFinite(y) ? format(y) : "diverged"}`));
  };
  svg.addEventListener("pointermove", (event) => {
    const place = svg.getBoundingClientRect();
    const x = x0 + (((event.clientX - place.left) / place.width) * BOX.width - BOX.left) / (BOX.width - BOX.left - BOX.right) * (x1 - x0);
    const nearest = xs.reduce((best, other, i) => (Math.abs(other - x) < Math.abs(xs[best] - x) ? i : best), 0);
    show(nearest, event.pageX, event.pageY);
  });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const i = Math.min(xs.length - 1, Math.max(0, at + step));
    const place = svg.getBoundingClientRect();
    show(i, window.scrollX + place.left + (px(xs[i]) / BOX.width) * place.width, window.scrollY + place.top + 30);
  });
  const hide = () => { cursor.setAttribute("visibility", "hidden"); $("tip").hidden = true; };
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
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
