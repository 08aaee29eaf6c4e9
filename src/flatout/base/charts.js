"use strict";
// Draws the curves of a page from its data block. On a live page `load` and `grow` take what is new.
const curves = (() => {
  const block = document.getElementById("curves");
  if (!block) return null;
  let charts = [], runs = [], marks = [], known = new Map(), most = 0;
  const SVG = "http://www.w3.org/2000/svg";
  const HEIGHT = 230, LEFT = 66, RIGHT = 10, TOP = 10, BOTTOM = 26;
  const place = document.querySelector(".charts");
  let axis = "step", zoom = null;

  const filled = (found, attributes, words) => {
    for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
    found.textContent = words;
    return found;
  };
  const make = (tag, attributes = {}, words = "") => filled(document.createElement(tag), attributes, words);
  const draw = (tag, attributes, parent, words = "") =>
    parent.appendChild(filled(document.createElementNS(SVG, tag), attributes, words));
  const rule = (name, x1, y1, x2, y2, parent) => draw("line", { class: name, x1, y1, x2, y2 }, parent);
  const colour = (series) => `var(--c${series.colour % 8})`;

  // the first place that is not below a value
  const search = (list, value) => {
    let low = 0, high = list.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (list[middle] < value) low = middle + 1; else high = middle;
    }
    return low;
  };
  const between = (from, to, value) => {
    if (!from.length) return value;
    const at = Math.min(Math.max(search(from, value), 1), from.length - 1);
    if (from.length === 1 || from[at] === from[at - 1]) return to[Math.min(at, to.length - 1)];
    return to[at - 1] + (value - from[at - 1]) / (from[at] - from[at - 1]) * (to[at] - to[at - 1]);
  };
  const added = (differences) => { let sum = 0; return differences.map((one) => (sum += one)); };

  const abscissa = (step, run) => axis === "step" ? step : between(runs[run].steps, runs[run].seconds, step);

  const scaled = (value, units, digits) => {
    const size = Math.abs(value);
    const [scale, suffix] = units.find(([scale]) => size >= scale * 0.9995) || [1, ""];
    return Number((value / scale).toPrecision(digits)).toString() + suffix;
  };
  const show = (value, kind, digits = 5) => {
    if (kind === "bytes") return scaled(value, [[1e12, " TB"], [1e9, " GB"], [1e6, " MB"], [1e3, " kB"]], Math.min(digits, 4));
    const size = Math.abs(value);
    if (size >= 1e4 && size < 1e15) return scaled(value, [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]], digits);
    if (size && (size < 1e-3 || size >= 1e15)) return Number(value.toPrecision(3)).toExponential().replace("e+", "e");
    return Number(value.toPrecision(digits)).toString();
  };
  const time = (seconds) => {
    if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
    return `${Math.floor(seconds / 3600)} h ${Math.round(seconds % 3600 / 60)} min`;
  };
  const steps = (low, high, most, bases = [1, 2, 5, 10]) => {
    const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
    const apart = bases.map((base) => base * power).find((one) => one >= rough * 0.999);
    const found = [];
    for (let value = Math.ceil(low / apart - 1e-9); value * apart <= high + apart * 1e-9; value++) found.push(value * apart);
    return found;
  };
  const powers = (low, high) => {
    for (const bases of [[1], [1, 3], [1, 2, 5]]) {
      const found = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
        for (const base of bases) {
          const value = base * 10 ** power;
          if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
        }
      }
      if (found.length > 2) return found.filter((_, index) => index % Math.ceil(found.length / 7) === 0);
    }
    return steps(low, high, 5).filter((value) => value > 0);
  };
  const times = (low, high) => {
    const unit = high - low >= 7200 ? 3600 : high - low >= 180 ? 60 : 1;
    return steps(low / unit, high / unit, 6).map((value) => value * unit);
  };

  const whole = () => {
    let low = Infinity, high = -Infinity;
    for (const chart of charts) {
      for (const series of chart.series) {
        if (!series.shown) continue;
        for (const list of [series.at, series.badAt]) {
          if (list.length) { low = Math.min(low, list[0]); high = Math.max(high, list[list.length - 1]); }
        }
      }
    }
    if (axis === "time") low = Math.min(low, 0);
    return low < high ? [low, high] : Number.isFinite(low) ? [low - 0.5, low + 0.5] : [0, 1];
  };
  const move = () => {
    for (const chart of charts) {
      for (const series of chart.series) {
        series.at = series.steps.map((step) => abscissa(step, series.run));
        series.badAt = series.bad.map((step) => abscissa(step, series.run));
      }
    }
  };

  function redraw(chart, width = chart.width) {
    const { svg } = chart;
    svg.textContent = "";
    svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    svg.setAttribute("height", HEIGHT);
    const [from, to] = zoom || whole();
    const right = width - RIGHT, bottom = HEIGHT - BOTTOM;
    let low = Infinity, high = -Infinity;
    for (const series of chart.series) {
      if (!series.shown) continue;
      series.first = Math.max(0, search(series.at, from) - 1);
      series.last = Math.min(series.at.length, search(series.at, to) + 2);
      for (let i = series.first; i < series.last; i++) {
        const value = series.y[i];
        if (series.at[i] < from || series.at[i] > to || (chart.log && value <= 0)) continue;
        if (value < low) low = value;
        if (value > high) high = value;
      }
    }
    for (const { value, run } of chart.levels || []) {
      if (chart.series.some((series) => series.shown && series.run === run) && (!chart.log || value > 0)) {
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
    }
    if (!(low <= high)) { low = chart.log ? 0.1 : 0; high = 1; }
    if (low === high) {
      const room = Math.abs(low) * 0.1 || 1;
      if (chart.log) { low /= 1.5; high *= 1.5; } else { low = chart.zero && low > 0 ? 0 : low - room; high += room; }
    } else if (!chart.log) {
      const room = (high - low) * 0.04;
      if (low >= 0 && (chart.zero || low < 0.2 * high)) low = 0; else low -= room;
      high += room;
    }
    const f = chart.log ? Math.log : Number;
    const x = (value) => LEFT + (value - from) / (to - from) * (right - LEFT);
    const y = (value) => bottom - (f(value) - f(low)) / (f(high) - f(low)) * (bottom - TOP);
    Object.assign(chart, { from, to, width, low, high, toX: x, toY: y });
    for (const value of chart.log ? powers(low, high) : steps(low, high, 5)) {
      const height = y(value);
      rule("grid", LEFT, height, right, height, svg);
      draw("text", { x: LEFT - 6, y: height + 4, "text-anchor": "end" }, svg, show(value, chart.kind, 4));
    }
    const across = axis === "step" ? steps(from, to, Math.max(2, Math.floor((right - LEFT) / 80))) : times(from, to);
    for (const value of across) {
      rule("grid", x(value), TOP, x(value), bottom, svg);
      const words = axis === "step" ? show(value, "", 4) : time(value);
      const anchor = x(value) > right - 24 ? "end" : "middle";
      draw("text", { x: Math.min(x(value), right), y: bottom + 17, "text-anchor": anchor }, svg, words);
    }
    const clip = `clip${chart.number}`;
    draw("rect", { x: LEFT, y: TOP - 4, width: right - LEFT, height: bottom - TOP + 8 },
      draw("clipPath", { id: clip }, draw("defs", {}, svg)));
    const inside = draw("g", { "clip-path": `url(#${clip})` }, svg);
    for (const mark of marks) {
      const at = abscissa(mark.step, mark.run);
      if (at >= from && at <= to) rule("mark", x(at), TOP, x(at), bottom, inside);
    }
    for (const { value, run, colour: own } of chart.levels || []) {
      if (!chart.series.some((series) => series.shown && series.run === run) || (chart.log && value <= 0)) continue;
      draw("path", { class: "level", d: `M${LEFT} ${y(value)}H${right}`, stroke: `var(--c${own % 8})` }, inside);
    }
    for (const series of chart.series) {
      if (!series.shown) continue;
      let path = "", pen = "M";
      for (let i = series.first; i < series.last; i++) {
        if (chart.log && series.y[i] <= 0) { pen = "M"; continue; }
        path += `${pen}${x(series.at[i]).toFixed(1)} ${y(series.y[i]).toFixed(1)}`;
        pen = "L";
      }
      const style = { d: path, stroke: colour(series) };
      if (series.last - series.first > width) style["stroke-width"] = 1;  // a dense curve would be one blot
      if (series.style === "faint") style["stroke-opacity"] = 0.35;
      if (series.style === "dash") style["stroke-dasharray"] = "5 3";
      draw("path", style, inside);
      if (series.last - series.first < 40 && series.style !== "faint") {
        for (let i = series.first; i < series.last; i++) {
          if (!chart.log || series.y[i] > 0) draw("circle", { cx: x(series.at[i]), cy: y(series.y[i]), r: 2.2, fill: colour(series) }, inside);
        }
      }
      for (const at of series.badAt) {
        if (at < from || at > to) continue;
        draw("path", { d: `M${x(at) - 4} ${TOP}h8l-4 7z`, style: `fill:${colour(series)}` }, inside);
      }
    }
    chart.brush = draw("rect", { class: "brush", y: TOP, height: bottom - TOP, width: 0 }, svg);
    chart.cursor = rule("cursor", -9, TOP, -9, bottom, svg);
  }
  const redrawAll = () => {
    if (!charts.length) return;
    const width = charts[0].figure.clientWidth || 480;
    for (const chart of charts) redraw(chart, width);
  };

  function point(chart, at) {
    const lines = [];
    for (const series of chart.series) {
      if (!series.shown || !series.at.length) continue;
      let near = search(series.at, at);
      if (near > 0 && (near === series.at.length || at - series.at[near - 1] < series.at[near] - at)) near--;
      const shown = show(series.y[near], chart.kind);
      lines.push([Math.abs(series.at[near] - at), `step ${series.steps[near].toLocaleString("en")}  ${series.name} ${shown}`]);
    }
    const reach = (chart.to - chart.from) / 20;
    const happened = marks.filter((mark) => Math.abs(abscissa(mark.step, mark.run) - at) < reach / 3).map((mark) => mark.text);
    return [...lines.filter(([distance]) => distance <= reach).map(([, words]) => words), ...happened.slice(0, 3)].join("\n");
  }
  const back = (chart, event) => {
    const at = event.clientX - chart.svg.getBoundingClientRect().left;
    const share = (at - LEFT) / (chart.width - RIGHT - LEFT);
    return chart.from + Math.min(Math.max(share, 0), 1) * (chart.to - chart.from);
  };
  function listen(chart) {
    let began = null;
    chart.svg.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      began = back(chart, event);
      chart.svg.setPointerCapture(event.pointerId);
    });
    chart.svg.addEventListener("pointermove", (event) => {
      const at = back(chart, event);
      for (const one of charts) {
        for (const end of ["x1", "x2"]) one.cursor.setAttribute(end, one.toX(at));
      }
      if (began !== null) {
        chart.brush.setAttribute("x", Math.min(chart.toX(began), chart.toX(at)));
        chart.brush.setAttribute("width", Math.abs(chart.toX(began) - chart.toX(at)));
      }
      chart.tip.textContent = point(chart, at);
      chart.tip.hidden = !chart.tip.textContent;
      const left = chart.toX(at) + 12;
      const tooFar = left + chart.tip.offsetWidth > chart.width;
      chart.tip.style.left = `${tooFar ? Math.max(0, left - 24 - chart.tip.offsetWidth) : left}px`;
      chart.tip.style.top = `${chart.caption.offsetHeight + TOP}px`;
    });
    chart.svg.addEventListener("pointerleave", () => {
      chart.tip.hidden = true;
      began = null;
      chart.brush.setAttribute("width", 0);
      for (const one of charts) for (const end of ["x1", "x2"]) one.cursor.setAttribute(end, -9);
    });
    chart.svg.addEventListener("pointerup", (event) => {
      const from = began, to = back(chart, event);
      began = null;
      chart.brush.setAttribute("width", 0);
      if (from === null || Math.abs(chart.toX(from) - chart.toX(to)) < 5) return;
      zoom = [Math.min(from, to), Math.max(from, to)];
      redrawAll();
    });
    chart.svg.addEventListener("dblclick", () => { zoom = null; redrawAll(); });
  }
  const toggle = (name, pressed, act, attributes = {}) => {
    const button = make("button", { type: "button", "aria-pressed": pressed, ...attributes }, name);
    button.addEventListener("click", () => button.setAttribute("aria-pressed", act(button)));
    return button;
  };

  const key = (name, several) => {
    const act = () => {
      for (const series of several) series.shown = !series.shown;
      redrawAll();
      return several[0].shown;
    };
    const button = toggle(name, true, act, { class: "key", title: "show or hide" });
    button.style.setProperty("--own", colour(several[0]));
    return button;
  };

  const tools = make("div", { class: "tools" });
  const byStep = toggle("steps", true, () => turn("step"));
  const byTime = toggle("training time", false, () => turn("time"));
  function turn(to) {
    axis = to;
    zoom = null;
    byStep.setAttribute("aria-pressed", to === "step");
    byTime.setAttribute("aria-pressed", to === "time");
    move();
    redrawAll();
    return true;
  }
  place.before(tools);
  const addTools = (note) => {
    const out = toggle("zoom out", false, () => { zoom = null; redrawAll(); return false; });
    tools.replaceChildren(byStep, ...(runs.every((run) => run.steps.length) ? [byTime] : []), out, make("span", {}, note));
    if (runs.length < 2) return;
    runs.forEach((run, number) => {
      const own = charts.flatMap((chart) => chart.series.filter((series) => series.run === number));
      if (own.length) tools.append(key(run.name, own));
    });
  };
  const addChart = (chart, number) => {
    chart.number = number;
    chart.figure = make("figure", { class: "chart" });
    const caption = chart.caption = make("figcaption");
    caption.append(make("b", {}, chart.title));
    if (runs.length === 1 && chart.series.length > 1) for (const series of chart.series) caption.append(key(series.name, [series]));
    const log = toggle("log", chart.log, () => { chart.log = !chart.log; chart.chosen = true; redraw(chart); return chart.log; }, { class: "key log" });
    if (chart.positive) caption.append(log);
    chart.svg = document.createElementNS(SVG, "svg");
    chart.svg.ariaLabel = chart.title;
    chart.tip = make("div", { class: "tip", hidden: "" });
    chart.figure.append(caption, chart.svg, chart.tip);
    place.append(chart.figure);
    listen(chart);
  };
  // what a reader has hidden, or drawn on another scale, stays so
  function load(data) {
    const were = new Map(charts.map((chart) => [chart.title, chart]));
    ({ charts, runs, marks } = data);
    for (const run of runs) run.steps = added(run.steps);
    known = new Map();
    for (const chart of charts) {
      const was = were.get(chart.title);
      if (was && was.chosen) Object.assign(chart, { log: was.log, chosen: true });
      for (const series of chart.series) {
        const old = was && was.series.find((one) => one.name === series.name);
        series.shown = old ? old.shown : true;
        series.steps = added(series.x);
        series.bad = added(series.bad || []);
        if (series.id) known.set(`${runs[series.run].id} ${series.id}`, series);
      }
    }
    most = Math.max(200, Math.floor(60000 / known.size));
    if (axis === "time" && !runs.every((run) => run.steps.length)) axis = "step";
    place.textContent = "";
    addTools(data.note);
    charts.forEach(addChart);
    tools.hidden = !charts.length;
    move();
    redrawAll();
  }

  let waiting = 0;
  const soon = () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(redrawAll); };
  addEventListener("resize", soon);

  // the lowest and the highest of each stretch
  function thin(series) {
    const { steps, y } = series, last = steps.length - 1, chosen = [0];
    const width = (steps[last] - steps[0] || 1) / (most / 4);
    for (let from = 1, to = 1; from < last; from = to) {
      let low = from, high = from;
      const stretch = Math.floor((steps[from] - steps[0]) / width);
      for (; to < last && Math.floor((steps[to] - steps[0]) / width) === stretch; to++) {
        if (y[to] < y[low]) low = to;
        if (y[to] > y[high]) high = to;
      }
      if (to === from) to++;
      chosen.push(...new Set([Math.min(low, high), Math.max(low, high)]));
    }
    chosen.push(last);
    for (const name of ["steps", "y", "at"]) series[name] = chosen.map((index) => series[name][index]);
  }

  // the name of a curve that the page does not have yet, if there is one
  function grow(news) {
    let unknown = "";
    for (const [id, { steps, clock, curves: own }] of Object.entries(news)) {
      const number = runs.findIndex((run) => run.id === id);
      if (number >= 0) {
        runs[number].steps.push(...clock[0]);
        runs[number].seconds.push(...clock[1]);
      }
      for (const [name, { x = steps, y, bad = [] }] of Object.entries(own)) {
        const series = known.get(`${id} ${name}`);
        if (!series) { unknown = `${id} ${name}`; continue; }
        series.steps.push(...x);
        series.y.push(...y);
        series.at.push(...x.map((step) => abscissa(step, number)));
        series.bad.push(...bad);
        series.badAt.push(...bad.map((step) => abscissa(step, number)));
        if (series.steps.length > most) thin(series);
      }
    }
    soon();
    return unknown;
  }

  const first = JSON.parse(block.textContent);
  load(first);
  return { load, grow, cursor: first.cursor };
})();
