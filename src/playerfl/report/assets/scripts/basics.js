"use strict";
// Shared by all parts of the page: elements, numbers as text, colours.

const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);

// Elements are built, never parsed, so data can only become text.
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

// Fills a table: heads are [title, is text]; a cell is its text, or [text, value, notes, tone].
function fillTable(table, heads, rows) {
  const cell = (shown, column) => {
    const [text, value, notes = [], tone = ""] = Array.isArray(shown) ? shown : [shown, undefined];
    const [tag, words] = [column ? "td" : "th", heads[column][1]];
    const span = el("span", { class: `v ${tone}` }, text);
    return el(tag, { scope: column ? null : "row", class: words ? null : "num", "data-value": words ? null : value || (/^\d+$/.test(text) ? text : value ?? "") },
      span, ...notes.map((note) => el("span", { class: "ci" }, note)));
  };
  fill(table,
    el("thead", {}, el("tr", {}, ...heads.map(([title, words]) => el("th", { scope: "col", class: words ? null : "num" }, title)))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map(cell)))));
}

// JSON has no infinity, so it is written as text; null is a missing number.
const numeric = (x) => (x === "inf" ? Infinity : x === "-inf" ? -Infinity : x === null ? NaN : x);
const textOf = (shown) => (Array.isArray(shown) ? shown[0] : shown);
const shortened = (text, longest) => (text.length > longest ? `${text.slice(0, longest - 1)}…` : text);
// A metric within a sentence: in lower case, unless it is an abbreviation or a name.
const lowered = (title) => (title.startsWith("Brier") || !/^.[a-z]/.test(title) ? title : title[0].toLowerCase() + title.slice(1));
// A line must not end between a number and its unit.
const unbroken = (text) => text.replace(/(\d) %/g, "$1\u00a0%");
const minus = (text) => text.replace("-", "−");
const metricOf = () => data.metrics[$("pick-metric").value];
function pValue(p) {
  if (p < data.smallestP) return `< ${data.smallestP.toExponential(0)}`;
  if (p < 1e-4) return p.toExponential(1);
  return p >= 0.095 ? p.toFixed(2) : String(Number(p.toPrecision(2)));
}
const pSaid = (p) => (p < data.smallestP ? `p ${pValue(p)}` : `p = ${pValue(p)}`);
function size(bytes) {
  for (const unit of ["B", "kB", "MB"]) {
    if (bytes < 1000) return unit === "B" ? `${Math.round(bytes)} B` : `${bytes.toFixed(1)} ${unit}`;
    bytes /= 1000;
  }
  return `${bytes.toFixed(1)} GB`;
}
const short = (x) => (x === 0 ? "0" : Math.abs(x) >= 1e-3 && Math.abs(x) < 1e5 ? String(Number(x.toPrecision(3))) : x.toExponential(2));
// Along an axis, 10⁵ is easier to read than 1.00e+5.
const powerOfTen = (x) => {
  const power = Math.round(Math.log10(x));
  const inWords = Math.abs(power) > 3 && Math.abs(x / 10 ** power - 1) < 1e-9;
  return inWords ? `10${[...String(power)].map((digit) => (digit === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit])).join("")}` : short(x);
};
const listed = (names) =>
  names.length < 2 ? (names[0] ?? "nothing") : `${names.slice(0, -1).join(", ")} and ${names[names.length - 1]}`;
const counted = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

// Okabe and Ito without their yellow, which is too faint for a line on white; then the same dashed, then dotted.
const COLOURS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7"].map((name) => `var(${name})`);
const look = (name) => {
  const i = data.algorithms.indexOf(name);
  return { colour: COLOURS[i % 7], dash: ["", "7 3", "2 3"][Math.floor(i / 7) % 3] };
};
