"use strict";
// A click on a column's head sorts the table by it.

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
    // Missing values stay at the end in both directions.
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
    return (up ? 1 : -1) * (x === y ? 0 : x - y);
  };
  for (const body of table.tBodies) body.append(...[...body.rows].sort(order));
}
