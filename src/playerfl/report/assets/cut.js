"use strict";
// The cut, as playerfl.layers computes it: combine_sites, cut_ratios, transition_point and choose_cut in the same
// order of operations, so that the numbers are equal to the last bit. tests/report/test_page_in_browser.py holds this.
const cut = (() => {
  const THRESHOLDS = { layer_ratio: 3.5, cumulative_ratio: 1.6 };

  // Shewchuk's exact sum, as Python's math.fsum.
  function fsum(values) {
    let partials = [];
    for (let x of values) {
      const kept = [];
      for (let y of partials) {
        if (Math.abs(x) < Math.abs(y)) [x, y] = [y, x];
        const high = x + y;
        const low = y - (high - x);
        if (low) kept.push(low);
        x = high;
      }
      partials = [...kept, x];
    }
    let n = partials.length;
    if (!n) return 0;
    let total = partials[--n];
    let low = 0;
    while (n > 0) {
      const x = total;
      const y = partials[--n];
      total = x + y;
      low = y - (total - x);
      if (low) break;
    }
    // Half to even: the rest below decides where the last bit is a tie.
    if (n > 0 && ((low < 0 && partials[n - 1] < 0) || (low > 0 && partials[n - 1] > 0))) {
      const y = low * 2;
      const x = total + y;
      if (y === x - total) total = x;
    }
    return total;
  }

  function cumulated(values) {
    let total = 0;
    return values.map((value, i) => (total = i ? total + value : value));
  }

  function median(values) {
    const sorted = [...values].sort((a, b) => a - b);
    const middle = sorted.length >> 1;
    return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  }

  // scores: {site: [s_1, …, s_L]}; gives {importance, leftOut, dominating}.
  function combineSites(scores, options = {}) {
    const { numExamples = null, clientWeight = "uniform", normalise = "none", reduce = "mean" } = options;
    if (clientWeight === "samples" && (!numExamples || reduce === "median")) {
      throw new Error("weighting by examples needs the mean, not the median");
    }
    const sites = Object.keys(scores).sort(byCodePoint);
    const usable = sites.filter((s) => scores[s].every(Number.isFinite) && scores[s].some((v) => v > 0));
    if (!usable.length) throw new Error("no site has usable layer scores");
    const rows = usable.map((site) => {
      const values = scores[site];
      const scale = normalise === "first_layer" ? values.find((v) => v > 0) : normalise === "last" ? fsum(values) : 1;
      return values.map((v) => v / scale);
    });
    const leftOut = sites.filter((s) => !usable.includes(s));
    const layers = rows[0].length;
    const columns = (table) => Array.from({ length: layers }, (_, l) => table.map((row) => row[l]));
    if (reduce === "median") {
      const middle = columns(rows.map(cumulated)).map(median);
      return { importance: middle.map((v, i) => (i ? v - middle[i - 1] : v)), leftOut, dominating: null };
    }
    const share = usable.map((site) => (clientWeight === "samples" ? numExamples[site] : 1));
    const shared = rows.map((row, i) => row.map((v) => v * share[i]));
    const total = share.reduce((a, b) => a + b, 0);
    const sums = shared.map(fsum);
    const largest = sums.indexOf(Math.max(...sums));
    const dominates = sums.length > 1 && sums[largest] > 0.8 * fsum(sums);
    return {
      importance: columns(shared).map((column) => fsum(column) / total),
      leftOut,
      dominating: dominates ? usable[largest] : null,
    };
  }

  // Python sorts text by code point, JavaScript by UTF-16 unit.
  function byCodePoint(a, b) {
    const left = [...a].map((c) => c.codePointAt(0));
    const right = [...b].map((c) => c.codePointAt(0));
    for (let i = 0; i < Math.min(left.length, right.length); i++) {
      if (left[i] !== right[i]) return left[i] - right[i];
    }
    return left.length - right.length;
  }

  function cutRatios(importance, rule) {
    const values = rule === "cumulative_ratio" ? cumulated(importance) : importance;
    let reference = 0;
    return values.slice(1).map((after, i) => {
      if (values[i] > 0) reference = values[i];
      return reference > 0 ? after / reference : null;
    });
  }

  // Gives {index, ratios, found, closeCalls}; throws where Python raises.
  function transitionPoint(importance, options = {}) {
    const { rule = "layer_ratio", onNoTransition = "all", fixed = null } = options;
    const count = importance.length;
    if (!count) throw new Error("there are no layers to cut");
    let threshold = null;
    if (rule in THRESHOLDS) {
      threshold = options.threshold ?? THRESHOLDS[rule];
      const lowest = rule === "cumulative_ratio" ? 1 : 0;
      if (Number.isNaN(threshold) || threshold < lowest) {
        throw new Error(`the threshold of this rule must be at least ${lowest}`);
      }
    }
    if (!importance.every((s) => Number.isFinite(s) && s >= 0)) {
      throw new Error("layer scores must be finite and not negative");
    }
    const ratios = cutRatios(importance, rule === "cumulative_ratio" ? rule : "layer_ratio");
    if (rule === "fixed") {
      if (!Number.isInteger(fixed) || fixed < 0 || fixed > count) {
        throw new Error(`the fixed cut must be between 0 and ${count}`);
      }
      return { index: fixed, ratios, found: true, closeCalls: [] };
    }
    let index = null;
    if (count === 1) index = 1;
    else if (rule === "max_jump") {
      ratios.forEach((ratio, i) => {
        if (ratio !== null && (index === null || ratio > ratios[index - 1])) index = i + 1;
      });
    } else {
      const first = ratios.findIndex((ratio) => ratio !== null && ratio > threshold);
      index = first < 0 ? null : first + 1;
    }
    const found = index !== null;
    if (!found) {
      if (onNoTransition === "error") throw new Error("no clear transition");
      index = onNoTransition === "all_but_last" ? count - 1 : count;
    }
    const closeCalls =
      threshold === null || threshold === Infinity
        ? []
        : ratios
            .slice(0, index)
            .flatMap((r, i) => (r !== null && Math.abs(r - threshold) <= 0.1 * threshold ? [i + 1] : []));
    return { index, ratios, found, closeCalls };
  }

  function chooseCut(scores, options = {}) {
    const combined = combineSites(scores, options);
    const chosen = transitionPoint(combined.importance, options);
    const other = (options.normalise ?? "none") === "none" ? "first_layer" : "none";
    const lenient = options.onNoTransition === "error" ? "all" : options.onNoTransition;
    const there = combineSites(scores, { ...options, normalise: other });
    const elsewhere = transitionPoint(there.importance, { ...options, onNoTransition: lenient }).index;
    return { ...combined, ...chosen, otherNormalise: elsewhere === chosen.index ? null : { normalise: other, elsewhere } };
  }

  return { fsum, cumulated, combineSites, cutRatios, transitionPoint, chooseCut, THRESHOLDS };
})();
