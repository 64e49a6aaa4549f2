"use strict";
// Every figure as a file or on the clipboard: the picture as SVG or PNG, its numbers as CSV.

// A chart's numbers, as rows with a head.
const numbersOf = new WeakMap();
const PIXELS = 2;

function asCsv(rows) {
  // Spreadsheets run text that starts like a formula.
  const cell = (value) => {
    if (value === undefined || value === null || Number.isNaN(value)) return "";
    const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}
// The drawing by itself, on white, with its title: colours are written out, because a file has no style sheet.
function asSvg(figure) {
  const drawn = figure.querySelector("svg[role=img]");
  const root = document.documentElement;
  root.dataset.theme = "light";
  const style = getComputedStyle(root);
  const colour = (text) => text.replace(/var\((--[\w-]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
  const copy = drawn.cloneNode(true);
  for (const node of [copy, ...copy.querySelectorAll("*")]) {
    if (node.getAttribute("visibility") === "hidden") { node.remove(); continue; }
    if (node.tagName === "text" && !node.getAttribute("style")) node.setAttribute("fill", style.getPropertyValue("--ink").trim());
    for (const { name, value } of [...node.attributes]) if (value.includes("var(")) node.setAttribute(name, colour(value));
  }
  delete root.dataset.theme;
  const { width, height } = drawn.viewBox.baseVal;
  const lines = wrapped(figure.querySelector("h3, h4")?.textContent ?? "", Math.floor(width / 7.6));
  const above = lines.length * 18 + 10;
  for (const name of ["tabindex", "role", "style"]) copy.removeAttribute(name);
  for (const [name, value] of Object.entries({ xmlns: "http://www.w3.org/2000/svg", width, height: height + above, viewBox: `0 ${-above} ${width} ${height + above}`, "font-family": "system-ui, sans-serif", "font-size": drawn.style.fontSize || 12 })) copy.setAttribute(name, value);
  copy.prepend(
    el("rect", { x: 0, y: -above, width, height: height + above, fill: "#fff" }),
    ...lines.map((line, i) => el("text", { x: 6, y: 18 * (i + 1) - above, "font-size": 14, "font-weight": 600, fill: "#1a1f26" }, line)),
  );
  return new XMLSerializer().serializeToString(copy);
}
function wrapped(text, most) {
  const lines = [];
  for (const word of text.split(" ")) {
    if (lines.length && `${lines[lines.length - 1]} ${word}`.length <= most) lines[lines.length - 1] += ` ${word}`;
    else lines.push(word);
  }
  return lines;
}
async function asPng(figure) {
  const picture = new Image();
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(asSvg(figure))}`;
  await picture.decode();
  const canvas = el("canvas", { width: picture.width * PIXELS, height: picture.height * PIXELS });
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}
function save(content, type, name) {
  const link = el("a", { download: name, href: URL.createObjectURL(new Blob([content], { type })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
function addTools(figure) {
  const status = el("span", { role: "status" });
  const numbers = () => asCsv(numbersOf.get(figure.querySelector("svg[role=img]")) ?? []);
  const name = figure.dataset.file;
  const work = {
    "Copy picture": () => navigator.clipboard.write([new ClipboardItem({ "image/png": asPng(figure) })]),
    "Copy numbers": () => navigator.clipboard.writeText(numbers()),
    SVG: () => save(asSvg(figure), "image/svg+xml", `${name}.svg`),
    PNG: async () => save(await asPng(figure), "image/png", `${name}.png`),
    CSV: () => save(numbers(), "text/csv", `${name}.csv`),
  };
  const buttons = Object.entries(work).map(([label, act]) => {
    const button = el("button", { type: "button" }, label);
    button.addEventListener("click", async () => {
      if (!figure.querySelector("svg[role=img]")) return;
      try {
        await act();
        status.textContent = label.startsWith("Copy") ? "Copied." : "Saved.";
      } catch {
        status.textContent = "This browser does not allow that; save it as a file instead.";
      }
    });
    return button;
  });
  figure.append(el("details", { class: "tools screen" }, el("summary", {}, "Copy or save"), ...buttons, status));
}
