"use strict";
// Who gains, who loses.

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
  const baselines = [[data.local, 3, own.runs[0]], [data.global, 7, own.runs[1]]].filter(([, , runs]) => runs > 0);
  const flag = (row) => {
    if (!own.runs[0]) return ["", ""];
    const [value, , , p] = row.slice(3, 7).map(numeric);
    const clear = p < data.level;
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
          const [value, low, high, p] = row.slice(at, at + 4).map(numeric);
          return el("td", { class: `num ${value < 0 ? "loss" : value > 0 ? "gain" : ""}`, "data-value": value },
            el("span", { class: "v" }, signed(value, metric)),
            Number.isNaN(low) ? null : el("span", { class: "ci" }, `[${signed(low, metric)}, ${signed(high, metric)}]`),
            Number.isNaN(low) ? null : el("span", { class: "ci" }, pSaid(p)));
        }),
        own.runs[0] ? el("td", { class: `flag ${tone}` }, text) : null);
    })),
  );
  makeSortable(table);
  const runs = Math.min(...baselines.map(([, , count]) => count));
  const worse = own.rows.filter((row) => numeric(row[3]) < 0).length;
  $("sites-said").textContent =
    (own.runs[0]
      ? `${algorithm} on ${task}: ${counted(own.rows.length, "site")}, ${worse} worse off than with ${data.local}; the worst off first. `
      : `${algorithm} on ${task}. `) +
    (baselines.length
      ? `Differences are medians over runs with the same seed (${baselines.map(([name, , runs]) => `${name}: ${runs}`).join(", ")})` +
        (metric.percent ? ", in percentage points; " : "; ") + "positive is better for the site. " +
        (runs < 2 ? "" : `In brackets: ${runs < data.enoughRuns ? `the range of ${runs} runs` : "95 % interval"}; p: Wilcoxon over seeds, Holm-corrected over the sites. `) +
        (runs < own.needed ? `With ${counted(own.rows.length, "site")} it takes ${own.needed} runs before any of them can be told from chance.` : "")
      : "");
}
