"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);

  // Elements are built, never parsed: what comes from data can only be text.
  const SVG = new Set(["svg", "g", "path", "line", "rect", "circle", "text", "polyline", "polygon", "title"]);
  function el(tag, attributes = {}, ...children) {
    const node = SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
  }
  const fill = (node, ...children) => node.replaceChildren(...children);
  const options = (select, pairs, chosen) => {
    fill(select, ...pairs.map(([value, text]) => el("option", { value }, text)));
    if (chosen !== undefined && pairs.some(([value]) => String(value) === String(chosen))) select.value = chosen;
  };

  // Infinity is written as text, since JSON has none; null is a number that is not there.
  const numeric = (x) => (x === "inf" ? Infinity : x === "-inf" ? -Infinity : x === null ? NaN : x);
  const minus = (text) => text.replace("-", "−");
  const metricOf = () => data.metrics[$("pick-metric").value];
  function score(x, metric) {
    x = numeric(x);
    if (!Number.isFinite(x)) return "diverged";
    return metric.percent ? (100 * x).toFixed(1) : Math.abs(x) < 1000 ? x.toFixed(3) : x.toPrecision(4);
  }
  function signed(x, metric) {
    x = numeric(x);
    if (Number.isNaN(x)) return "";
    if (!Number.isFinite(x)) return x > 0 ? "+∞" : "−∞";
    const text = metric.percent ? (100 * x).toFixed(1) : x.toFixed(3);
    return minus(x >= 0 && !text.startsWith("-") ? `+${text}` : text);
  }
  function pValue(p) {
    if (p === 0) return "0";
    if (p < 1e-4) return p.toExponential(1);
    return p >= 0.095 ? p.toFixed(2) : String(Number(p.toPrecision(2)));
  }
  function size(bytes) {
    for (const unit of ["B", "kB", "MB"]) {
      if (bytes < 1000) return unit === "B" ? `${Math.round(bytes)} B` : `${bytes.toFixed(1)} ${unit}`;
      bytes /= 1000;
    }
    return `${bytes.toFixed(1)} GB`;
  }
  const short = (x) => (x === 0 ? "0" : Math.abs(x) >= 1e-3 && Math.abs(x) < 1e5 ? String(Number(x.toPrecision(3))) : x.toExponential(2));
  const listed = (names) =>
    names.length < 2 ? (names[0] ?? "nothing") : `${names.slice(0, -1).join(", ")} and ${names[names.length - 1]}`;
  const counted = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

  // Okabe and Ito without their yellow, which is too faint for a line on white; then the same dashed, then dotted.
  const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"];
  const look = (name) => {
    const i = data.algorithms.indexOf(name);
    return { colour: COLOURS[i % 7], dash: ["", "7 3", "2 3"][Math.floor(i / 7) % 3] };
  };

  function makeSortable(table) {
    for (const [column, head] of [...table.tHead.rows[0].cells].entries()) {
      if (head.querySelector("button")) continue;
      const button = el("button", { type: "button" }, ...head.childNodes);
      fill(head, button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => sortBy(table, column, head));
    }
  }
  function sortBy(table, column, head) {
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = (row) => {
      const cell = row.cells[column];
      const value = cell.dataset.value;
      return value === undefined ? cell.textContent.trim() : value === "" ? NaN : Number(value);
    };
    const order = (a, b) => {
      const [x, y] = [key(a), key(b)];
      if (typeof x === "string" || typeof y === "string") return (up ? 1 : -1) * String(x).localeCompare(String(y));
      // What is not there stays at the end, whichever way the rest goes.
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
      return (up ? 1 : -1) * (x === y ? 0 : x - y);
    };
    for (const body of table.tBodies) body.append(...[...body.rows].sort(order));
  }

  // Drawn as wide as there is room, so that text keeps its size on a phone.
  const boxOf = (home) => ({ width: Math.max(260, Math.min(900, home.clientWidth || 900)), height: 380, left: 62, right: 16, top: 14, bottom: 46 });
  function ticks(low, high, count = 6) {
    const span = high - low || Math.abs(high) || 1;
    const raw = span / count;
    const base = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * base).find((s) => s >= raw);
    const found = [];
    for (let t = Math.ceil(low / step - 1e-9) * step; t <= high + step * 1e-9; t += step) found.push(Number(t.toPrecision(12)));
    return found;
  }
  function logTicks(low, high) {
    const found = [];
    const decades = Math.ceil(Math.log10(high)) - Math.floor(Math.log10(low));
    const every = Math.max(1, Math.ceil(decades / 6));
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e += every) found.push(10 ** e);
    return found.filter((t) => t >= low * 0.999 && t <= high * 1.001);
  }

  // series: [{name, colour, dash, x: [], y: [], low: [], high: [], markers, faint, end}]
  function lineChart(home, { series, xLabel, yLabel, xTicks, log = false, format, alt, xFormat = String, rule, from }) {
    const BOX = boxOf(home);
    const all = series.flatMap((s) => [...s.y, ...(s.low ?? []), ...(s.high ?? []), ...(s.end === undefined ? [] : [s.end])]);
    const good = all.filter((y) => Number.isFinite(y) && (!log || y > 0));
    const xs = [...new Set(series.flatMap((s) => s.x))].sort((a, b) => a - b);
    if (!good.length || !xs.length) return fill(home, el("p", { class: "small" }, "Nothing to draw: there is no finite number here."));
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
        svg.append(el("polygon", { points: band.join(" "), fill: s.colour, opacity: 0.13 }));
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

  const tableName = () => {
    const kind = $("pick-kind").value;
    return kind === "score" ? $("pick-metric").value : `${kind}_${$("pick-metric").value}`;
  };
  const ownRankings = () => data.rankings[tableName()] ?? [];
  function drawOver() {
    const pairs = ownRankings().map((r, i) => [i, r.over === "tasks" ? `the ${r.n} tasks` : `the ${counted(r.n, "run")} on ${r.over}`]);
    options($("pick-over"), pairs);
    drawTests();
  }
  function drawTests() {
    const r = ownRankings()[Number($("pick-over").value)];
    if (!r) {
      $("friedman").textContent = "There are not two methods to rank here.";
      for (const id of ["cd-chart", "pairs"]) fill($(id));
      $("cd-caption").textContent = $("pairs-caption").textContent = "";
      return;
    }
    const f = r.friedman;
    $("friedman").textContent =
      (f
        ? `Friedman: χ² = ${f.chi2.toFixed(2)}, ${f.df} degrees of freedom, p = ${pValue(f.p)}. ` +
          `Iman-Davenport: F(${f.fdf.join(", ")}) = ${Number.isFinite(numeric(f.f)) ? f.f.toFixed(2) : "∞"}, p = ${pValue(f.fp)}. ` +
          `Kendall’s W = ${f.w.toFixed(2)}. `
        : "") + (r.remark ?? "") + (r.leftOut.length ? ` Left out, because results are missing: ${listed(r.leftOut)}.` : "");
    drawRanks(r);
    drawPairs(r);
  }
  function drawRanks(r) {
    const k = r.algorithms.length;
    const order = [...r.mean.keys()].sort((a, b) => r.mean[a] - r.mean[b]);
    const half = Math.ceil(k / 2);
    const row = 19;
    const bars = r.cliques.length * 9;
    const wide = boxOf($("cd-chart")).width;
    const side = wide > 700 ? 230 : 138;
    const [left, right, top] = [side, wide - side, r.cd === null ? 30 : 52];
    const height = top + 22 + bars + half * row + 12;
    const px = (rank) => left + ((rank - 1) / Math.max(1, k - 1)) * (right - left);
    const alt = `Mean ranks, best first: ${order.map((i) => `${r.algorithms[i]} ${r.mean[i].toFixed(2)}`).join(", ")}.` +
      (r.cd === null ? "" : ` Critical difference ${r.cd.toFixed(2)}.`);
    const svg = el("svg", { viewBox: `0 0 ${wide} ${height}`, role: "img", "aria-label": alt, style: wide > 700 ? null : "font-size: 10px" });
    svg.append(el("line", { x1: left, x2: right, y1: top, y2: top, stroke: "#1a1f26" }));
    for (let t = 1; t <= k; t++) {
      svg.append(el("line", { x1: px(t), x2: px(t), y1: top - 5, y2: top, stroke: "#1a1f26" }), el("text", { x: px(t), y: top - 9, "text-anchor": "middle" }, String(t)));
    }
    if (r.cd !== null && k > 1) {
      const end = Math.min(px(1 + r.cd), wide - 5);
      svg.append(
        el("path", { d: `M${left} ${top - 38}v8m0-4H${end}m0-4v8`, fill: "none", stroke: "#1a1f26", "stroke-width": 1.5 }),
        el("text", { x: end + 80 > wide ? left - 8 : end + 6, y: top - 30, "text-anchor": end + 80 > wide ? "end" : "start" }, `CD = ${r.cd.toFixed(2)}`),
      );
    }
    r.cliques.forEach((members, i) => {
      const ranks = members.map((m) => r.mean[m]);
      const y = top + 12 + i * 9;
      svg.append(el("line", { x1: px(Math.min(...ranks)) - 4, x2: px(Math.max(...ranks)) + 4, y1: y, y2: y, stroke: "#57606a", "stroke-width": 4 }));
    });
    order.forEach((member, position) => {
      const isLeft = position < half;
      const y = top + 22 + bars + (isLeft ? position : k - 1 - position) * row;
      const x = px(r.mean[member]);
      const edge = isLeft ? left - 8 : right + 8;
      svg.append(
        el("path", { d: `M${x} ${top}V${y}H${edge}`, fill: "none", stroke: look(r.algorithms[member]).colour, "stroke-width": 1.4 }),
        el("text", { x: isLeft ? edge - 5 : edge + 5, y: y + 4, "text-anchor": isLeft ? "end" : "start" }, `${r.algorithms[member]}  ${r.mean[member].toFixed(2)}`),
      );
    });
    fill($("cd-chart"), svg);
    $("cd-caption").textContent = r.cd === null
      ? "Mean rank of each method; 1 is best."
      : "Mean rank of each method; 1 is best. Methods joined by a grey bar are closer than the critical difference (Nemenyi, 5 %): these blocks do not tell them apart.";
  }
  function drawPairs(r) {
    const what = $("pick-posthoc").value;
    const matrix = r[what];
    const table = $("pairs");
    if (!matrix) {
      fill(table);
      $("pairs-caption").textContent = "";
      return;
    }
    fill(
      table,
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Method"), ...r.algorithms.map((name) => el("th", { scope: "col", class: "num" }, name)))),
      el("tbody", {}, ...r.algorithms.map((name, i) =>
        el("tr", {}, el("th", { scope: "row" }, name), ...r.algorithms.map((_, j) => {
          const value = matrix[i][j];
          if (i === j) return el("td", { class: "none" }, "–");
          return what === "effect"
            ? el("td", {}, minus((value > 0 ? "+" : "") + value.toFixed(2)))
            : el("td", { class: value < 0.05 ? "sure" : null }, pValue(value));
        })))),
    );
    $("pairs-caption").textContent = what === "effect"
      ? "Rank-biserial correlation over the blocks: +1 where the row’s method is better in every block, −1 where it is worse in every one."
      : "Shaded: below 0.05.";
  }

  function drawSites() {
    const metric = metricOf();
    const task = $("pick-task").value;
    const algorithm = $("pick-algorithm").value;
    const own = data.gains[task]?.[algorithm]?.[$("pick-metric").value];
    const table = $("site-table");
    if (!own) {
      fill(table);
      $("sites-said").textContent = `There are no runs of ${algorithm} on ${task} with this metric.`;
      return;
    }
    const names = data.sites[task];
    const baselines = [[data.local, 3, own.runs[0]], [data.global, 6, own.runs[1]]].filter(([, , runs]) => runs > 0);
    const flag = (row) => {
      if (!own.runs[0]) return ["", ""];
      const [value, low, high] = row.slice(3, 6).map(numeric);
      const clear = own.runs[0] >= data.enoughRuns && (low > 0 || high < 0);
      if (value < 0) return clear ? ["▼ harmed by joining", "loss"] : ["▽ worse, may be chance", "loss"];
      if (value > 0) return clear ? ["▲ gains", "gain"] : ["△ better, may be chance", "gain"];
      return ["no difference", ""];
    };
    const head = ["Site", "Examples", metric.name + (metric.percent ? ", %" : ""), ...baselines.map(([name]) => `against ${name}`), ...(own.runs[0] ? ["Joining"] : [])];
    fill(
      table,
      el("thead", {}, el("tr", {}, ...head.map((text, i) => el("th", { scope: "col", class: i > 0 && i < 3 + baselines.length ? "num" : null }, text)))),
      el("tbody", {}, ...own.rows.map((row) => {
        const [text, tone] = flag(row);
        return el("tr", {},
          el("th", { scope: "row" }, names[row[0]]),
          el("td", { class: "num", "data-value": row[1] }, row[1].toLocaleString("en")),
          el("td", { class: "num", "data-value": Number.isFinite(numeric(row[2])) ? row[2] : "" }, score(row[2], metric)),
          ...baselines.map(([, at]) => {
            const [value, low, high] = row.slice(at, at + 3).map(numeric);
            return el("td", { class: `num ${value < 0 ? "loss" : value > 0 ? "gain" : ""}`, "data-value": value },
              el("span", { class: "v" }, signed(value, metric)),
              Number.isNaN(low) ? null : el("span", { class: "ci" }, `[${signed(low, metric)}, ${signed(high, metric)}]`));
          }),
          own.runs[0] ? el("td", { class: `flag ${tone}` }, text) : null);
      })),
    );
    makeSortable(table);
    const worse = own.rows.filter((row) => numeric(row[3]) < 0).length;
    $("sites-said").textContent =
      (own.runs[0]
        ? `${algorithm} on ${task}: ${counted(own.rows.length, "site")}, ${worse} worse off than with ${data.local}; the worst off first. `
        : `${algorithm} on ${task}. `) +
      (baselines.length
        ? `Differences are medians over runs with the same seed (${baselines.map(([name, , runs]) => `${name}: ${runs}`).join(", ")})` +
          (metric.percent ? ", in percentage points; " : "; ") + "positive is better for the site."
        : "");
  }

  const hiddenCurves = new Set();
  function drawSplits() {
    const splits = data.curves[$("pick-task").value] ?? {};
    const known = Object.keys(splits).filter((split) => splits[split][$("pick-metric").value]);
    const before = $("pick-split").value;
    options($("pick-split"), known.map((split) => [split, { test: "test", validation: "validation", train: "training" }[split]]), before);
    drawCurveSites();
  }
  function drawCurveSites() {
    const before = $("pick-site").value;
    const perSite = $("pick-split").value === "test" ? data.sites[$("pick-task").value] : [];
    options($("pick-site"), [["", "all sites, averaged"], ...perSite.map((name, i) => [String(i), name])], before);
    drawCurves();
  }
  function drawCurves() {
    const [task, split, site] = ["pick-task", "pick-split", "pick-site"].map((id) => $(id).value);
    const own = data.curves[task]?.[split]?.[$("pick-metric").value] ?? {};
    const metric = metricOf();
    const names = data.algorithms.filter((name) => own[name]);
    fill($("curve-legend"), ...names.map((name) => {
      const { colour, dash } = look(name);
      const box = el("input", { type: "checkbox" });
      box.checked = !hiddenCurves.has(name);
      box.addEventListener("change", () => { hiddenCurves[box.checked ? "delete" : "add"](name); drawCurves(); $("curve-legend").querySelectorAll("input")[names.indexOf(name)].focus(); });
      return el("label", {}, box, el("svg", { viewBox: "0 0 30 10", "aria-hidden": "true" }, el("line", { x1: 0, x2: 30, y1: 5, y2: 5, stroke: colour, "stroke-width": 3, "stroke-dasharray": dash || null })), name);
    }));
    const series = names.filter((name) => !hiddenCurves.has(name)).map((name) => {
      const c = own[name];
      const { colour, dash } = look(name);
      const values = (list) => list.map(numeric);
      return site === ""
        ? { name, colour, dash, x: c.r, y: values(c.m), low: c.n > 1 ? values(c.l) : null, high: values(c.h), end: c.t === null ? undefined : numeric(c.t) }
        : { name, colour, dash, x: c.sr, y: values(c.s[Number(site)]) };
    });
    const format = (y) => (metric.percent ? String(Number((100 * y).toPrecision(4))) : short(y));
    const where = site === "" ? "the average over sites" : data.sites[task][Number(site)];
    const last = series.map((s) => `${s.name} ${Number.isFinite(s.y[s.y.length - 1]) ? format(s.y[s.y.length - 1]) : "diverged"}`);
    lineChart($("curve-chart"), {
      series, xLabel: "round", yLabel: metric.name + (metric.percent ? ", %" : ""), format,
      alt: `${metric.name} of ${where} on ${task} by round. In the last round: ${last.join(", ")}. Arrow keys read single rounds; the values are in the table below.`,
    });
    $("curve-caption").textContent =
      `${metric.name} of ${where} on the ${split === "train" ? "training" : split} data. ` +
      (site === "" ? "Lines: median over runs; bands: the middle half of the runs. A diamond is the average after a method’s final tuning." : "Median over runs.");
    const shown = [...new Set(series.flatMap((s) => s.x))].sort((a, b) => a - b);
    fill($("curve-table"),
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Round"), ...series.map((s) => el("th", { scope: "col", class: "num" }, s.name)))),
      el("tbody", {}, ...shown.map((x) => el("tr", {}, el("th", { scope: "row" }, String(x)), ...series.map((s) => {
        const y = s.y[s.x.indexOf(x)];
        return el("td", { class: "num" }, y === undefined ? "" : Number.isFinite(y) ? format(y) : "diverged");
      })))));
  }

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

  function drawMetric() {
    const metric = $("pick-metric").value;
    for (const box of document.querySelectorAll(".by-metric")) box.classList.toggle("off", box.dataset.metric !== metric);
    drawOver();
    drawSites();
    drawSplits();
  }
  function drawTask() {
    drawSites();
    drawSplits();
    if ($("layers")) resetWhatIf();
  }
  const on = (id, event, work) => $(id)?.addEventListener(event, work);
  on("pick-metric", "change", drawMetric);
  on("pick-task", "change", drawTask);
  on("pick-kind", "change", drawOver);
  for (const id of ["pick-over", "pick-posthoc"]) on(id, "change", drawTests);
  on("pick-algorithm", "change", drawSites);
  on("pick-split", "change", drawCurveSites);
  on("pick-site", "change", drawCurves);
  for (const id of ["pick-run", "pick-normalise", "pick-reduce", "pick-none"]) on(id, "change", drawWhatIf);
  on("pick-rule", "change", () => { setThreshold(cut.THRESHOLDS[$("pick-rule").value] ?? $("threshold-number").value); drawWhatIf(); });
  on("threshold", "input", () => {
    $("threshold-number").value = toThreshold(Number($("threshold").value));
    $("threshold").setAttribute("aria-valuetext", $("threshold-number").value);
    drawWhatIf();
  });
  on("threshold-number", "input", () => { $("threshold").value = toPosition(Number($("threshold-number").value) || 1); drawWhatIf(); });
  on("fixed", "input", drawWhatIf);
  on("what-if-reset", "click", resetWhatIf);
  let room = document.documentElement.clientWidth;
  window.addEventListener("resize", () => {
    if (document.documentElement.clientWidth === room) return;
    room = document.documentElement.clientWidth;
    drawTests();
    drawCurves();
    drawWhatIf();
  });
  window.addEventListener("beforeprint", () => { for (const box of document.querySelectorAll("details")) box.open = true; });

  $("pick-metric").value = data.metric;
  document.querySelectorAll("table.sortable").forEach((table) => table.tHead && makeSortable(table));
  drawMetric();
  if ($("layers")) resetWhatIf();
})();
