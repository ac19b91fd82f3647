// Main figures, drawn from the data of their pictures: values at the pointer, series hidden by the legend, a linear or a logarithmic
// axis of values. The picture is what is printed, and what is shown without this program.

const MAX_PANELS = 6; // drawn at first
const ROW_PX = 24;
const CHARACTER_PX = 6.6;
const PANEL_PX = 230; // of a panel over levels
const MIN_PANEL_PX = 240;
const GAP_PX = 16;
const MAX_REACH = 3; // of intervals beyond the means, in the axis; zooming out shows longer ones
const ESTIMATE_DASH = [1, 3];
const IDEAL_ALPHA = 0.55; // of the ideal of a series
const BAND_ALPHA = 0.4;
const SVG = "http://www.w3.org/2000/svg";
const MARKER_PATHS = {
  square: "M9 2h6v6h-6z",
  triangle: "M12 1.5l4 7h-8z",
  inverted_triangle: "M12 8.5l4-7h-8z",
  diamond: "M12 .5l4 4.5-4 4.5-4-4.5z",
  plus: "M12 1v8M8 5h8",
  x: "M9 2l6 6M15 2l-6 6",
};

function swatch_of({ colour: printed, marker, filled, dash }) {
  const colour = shade(printed);
  const svg = document.createElementNS(SVG, "svg");
  const part = (name, attributes) => {
    const element = document.createElementNS(SVG, name);
    Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
    svg.append(element);
  };
  Object.entries({ viewBox: "0 0 24 10", width: 24, height: 10, class: "swatch line", "aria-hidden": "true" }).forEach(([key, value]) => svg.setAttribute(key, value));
  if (dash) part("path", { d: "M0 5h24", stroke: colour, "stroke-width": 1.5, "stroke-dasharray": dash.join(" ") });
  const fill = { fill: filled ? colour : theme_colours().paper, stroke: colour, "stroke-width": 1.5 };
  if (marker === null) return svg;
  if (MARKER_PATHS[marker]) part("path", { d: MARKER_PATHS[marker], ...fill });
  else part("circle", { cx: 12, cy: 5, r: 3.5, ...fill });
  return svg;
}

// The range of the axis of values: from 0, or around what is drawn; panels of one quantity share it.
// Where a device has an ideal value, a linear axis ends as that of the picture, and a logarithmic one shows all ideals.
function range_of(panels, quantity, logarithmic) {
  const own = panels.filter((panel) => panel.quantity === quantity);
  const points = own.flatMap((panel) => panel.points);
  const values = points.flatMap(({ value, runs }) => [value, ...runs.map((run) => run[2])]);
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const bounds = (name, start, pick) => points.reduce((bound, point) => (point[name] === null ? bound : pick(bound, point[name])), start);
  const unit = own[0].ideal_unit;
  const ideals = unit ? own.flatMap((panel) => panel.ideals.flatMap(({ points }) => points.map(([, value]) => value))) : [];
  const reach = Math.min(bounds("high", most, Math.max), MAX_REACH * most);
  if (!logarithmic) return [0, Math.max(1.06 * reach, ...own.map((panel) => panel.top ?? 0))];
  const high = Math.max(reach, ...ideals);
  const low = Math.min(Math.max(bounds("low", least, Math.min), least / MAX_REACH), ...ideals);
  if (unit) return [unit * 2 ** Math.floor(Math.log2(low / unit)) / 1.04, unit * 2 ** Math.ceil(Math.log2(high / unit)) * 1.04];
  const room = (high / low) ** 0.04 * 1.02;
  return [low / room, high * room];
}

function columns_of(chart, width, label_px) {
  const per_quantity = chart.panels.filter((panel) => panel.quantity === chart.panels[0].quantity).length;
  const fitting = Math.floor((width - label_px + GAP_PX) / (MIN_PANEL_PX * (chart.horizontal ? 0.75 : 1) + GAP_PX));
  return Math.max(1, Math.min(per_quantity, fitting, 4));
}

function panel_figure(Bokeh, chart, panel, { range, logarithmic, width, height, label_px, first }) {
  const places = chart.ticks.map(([place]) => place);
  const cells = [...chart.limits];
  const axis_type = logarithmic ? "log" : "linear";
  const along = chart.horizontal
    ? { x_range: range, y_range: cells, x_axis_type: axis_type, x_axis_label: panel.quantity }
    : { x_range: cells, y_range: range, y_axis_type: axis_type, x_axis_label: chart.axis, y_axis_label: first ? panel.quantity : null };
  const coarse = matchMedia("(pointer: coarse)").matches; // there a drag scrolls the page
  const figure = new_figure(Bokeh, {
    sizing_mode: "fixed",
    width,
    height,
    tools: coarse ? "" : [new Bokeh.BoxZoomTool({ dimensions: chart.horizontal ? "width" : "both" })],
    ...(coarse ? {} : { active_drag: "auto" }),
    ...along,
    ...(chart.horizontal ? { min_border_left: first ? label_px : GAP_PX / 2 } : {}),
  });
  const [cell_axis] = chart.horizontal ? figure.yaxes : figure.xaxes;
  cell_axis.setv({ ticker: new Bokeh.FixedTicker({ ticks: places }), major_label_overrides: new Map(chart.ticks) });
  if (chart.horizontal && !first) cell_axis.major_label_text_font_size = "0px";
  const values = chart.horizontal ? [figure.xaxes, figure.xgrids] : [figure.yaxes, figure.ygrids];
  for (const grid of [...figure.xgrids, ...figure.ygrids]) grid.grid_line_color = values[1].includes(grid) ? theme_colours().grid : null;
  for (const [left, right] of chart.bands) figure.add_layout(new Bokeh.BoxAnnotation({ left, right, fill_color: theme_colours().grid, fill_alpha: BAND_ALPHA, line_color: null, level: "underlay" }));
  if (logarithmic) set_log_ticks(Bokeh, ...values, range[0], range[1], panel.ideal_unit);
  else for (const axis of values[0]) axis.ticker = new Bokeh.BasicTicker({ desired_num_ticks: 5, num_minor_ticks: 0 });
  return figure;
}

const CELL_TOOLTIP = [["series", "@series"], ["cell", "@cell"], ["value [95 % interval]", "@text"], ["runs", "@n"]];
const run_tooltip = (quantity) => [["run", "@run"], ["replicate", "@replicate"], [quantity.replace(/ \(.*\)$/, ""), "@shown"], ["mean of its cell [95 % interval]", "@text"]];

function line_of(Bokeh, figure, { points }, style) {
  const source = new Bokeh.ColumnDataSource({ data: { x: points.map(([place]) => place), y: points.map(([, value]) => value) } });
  return figure.line({ field: "x" }, { field: "y" }, { source, ...style });
}

// The glyphs of one series in one panel. `pointed` gets a function that returns the runs at the pointer.
function series_glyphs(Bokeh, figure, chart, panel, index, logarithmic, pointed) {
  const { name, marker, filled, dash } = chart.series[index];
  const colour = shade(chart.series[index].colour);
  const points = panel.points.filter((point) => point.series === index);
  if (!points.length) return [];
  const swap = (cell, value) => (chart.horizontal ? { x: value, y: cell } : { x: cell, y: value });
  const fields = [{ field: "x" }, { field: "y" }];
  const values_of = (key) => points.map((point) => point[key]);
  const source = (columns) => new Bokeh.ColumnDataSource({ data: columns });
  const glyphs = [];
  const floor = logarithmic ? 1e-12 : -Infinity;
  for (const single of [false, true]) {
    const barred = points.filter((point) => point.low !== null && point.is_single === single && point.high !== point.low);
    if (!barred.length) continue;
    const place = barred.map((point) => point.place);
    const [low, high] = [barred.map((point) => Math.max(point.low, floor)), barred.map((point) => point.high)];
    const [start, end] = [swap(place, low), swap(place, high)];
    const bars = source({ x: start.x, y: start.y, x1: end.x, y1: end.y });
    glyphs.push(figure.segment({ field: "x" }, { field: "y" }, { field: "x1" }, { field: "y1" }, { source: bars, line_color: colour, line_width: 1.8, line_dash: { value: single ? "dashed" : "solid" } }));
  }
  if (chart.joined && points.length > 1) {
    const along = [...points].sort((a, b) => a.place - b.place);
    const line = source({ x: along.map((point) => point.place), y: along.map((point) => point.value) });
    glyphs.push(figure.line(...fields, { source: line, line_color: colour, line_width: 1.5, line_dash: dash }));
  }
  const of_series = (curve) => curve.series === index;
  glyphs.push(...panel.estimates.filter(of_series).map((curve) => line_of(Bokeh, figure, curve, { line_color: colour, line_dash: ESTIMATE_DASH })));
  glyphs.push(...panel.ideals.filter(of_series).map((curve) => line_of(Bokeh, figure, curve, { line_color: colour, line_alpha: IDEAL_ALPHA })));
  for (const [, value] of panel.baselines.filter(([series]) => series === index)) {
    const level = { series: index, points: chart.limits.map((end) => [end, value]) };
    glyphs.push(line_of(Bokeh, figure, level, { line_color: colour, line_width: 1.2, line_dash: dash }));
  }
  const means = source({ ...swap(values_of("place"), values_of("value")), series: points.map(() => name), cell: values_of("cell"), text: values_of("text"), n: values_of("n") });
  const mean = figure.scatter(...fields, { source: means, marker, size: 9, line_color: colour, line_width: 1.5, fill_color: filled ? colour : theme_colours().paper });
  glyphs.push(mean);
  const tools = [new Bokeh.HoverTool({ renderers: [mean], tooltips: CELL_TOOLTIP, visible: false, show_arrow: false })];
  const runs = points.flatMap((point) => point.runs.map(([run, replicate, value, shown_value]) => ({ run, replicate, value, shown: shown_value, place: point.place + chart.run_offset, text: point.text })));
  if (runs.length) {
    const run_values = (key) => runs.map((run) => run[key]);
    const ticks = source({ ...swap(run_values("place"), run_values("value")), run: run_values("run"), replicate: run_values("replicate"), shown: run_values("shown"), text: run_values("text") });
    const tick = figure.scatter(...fields, { source: ticks, marker: "dash", angle: chart.horizontal ? Math.PI / 2 : 0, size: 8, line_color: colour, line_width: 1.5 });
    glyphs.push(tick);
    tools.push(new Bokeh.HoverTool({ renderers: [tick], tooltips: run_tooltip(panel.quantity), visible: false, show_arrow: false }));
    pointed.push(() => ticks.inspected.indices.map((row) => runs[row].run));
  }
  figure.add_tools(...tools);
  return glyphs;
}

// OOM at the low end of the axis of values, where cells ran out of memory.
function mark_out_of_memory(Bokeh, figure, chart, panel, lowest) {
  const cells = panel.out_of_memory;
  if (!cells.length) return;
  const places = cells.map(([, place]) => place);
  const ends = places.map(() => lowest);
  const data = { x: chart.horizontal ? ends : places, y: chart.horizontal ? places : ends, text: places.map(() => "OOM"), cell: cells.map(([, , cell]) => cell), colour: cells.map(([series]) => shade(chart.series[series].colour)) };
  const where = chart.horizontal ? { x_offset: 4, text_align: "left", text_baseline: "middle" } : { y_offset: -3, text_align: "center", text_baseline: "bottom" };
  const marks = figure.text({ field: "x" }, { field: "y" }, { field: "text" }, { source: new Bokeh.ColumnDataSource({ data }), text_font_size: "11px", text_color: { field: "colour" }, ...where });
  figure.add_tools(new Bokeh.HoverTool({ renderers: [marks], tooltips: [["cell", "@cell"], ["runs", "out of memory"]], visible: false, show_arrow: false }));
}

// A heat map is a table whose fields are buttons: the field at the pointer, or the one that was pressed, has its values and runs below.
function draw_heat_map(box, map) {
  const [panels_box, legend_box] = [box.querySelector(".panels"), box.querySelector(".legend")];
  const button = (action) => box.querySelector(`[data-action=${action}]`);
  const means = map.panels.flatMap((panel) => panel.fields.flatMap(({ value }) => (value === null ? [] : [value])));
  const [least, most] = [Math.min(...means), Math.max(...means)];
  const detail = make("p", { className: "field-detail", textContent: "Point at a field, or press it, for its runs.", attributes: { "aria-live": "polite" } });
  let logarithmic = map.logarithmic && least > 0;

  function share_of(value) {
    if (most === least) return 0.5;
    const at = logarithmic ? Math.log : (number) => number;
    return (at(value) - at(least)) / (at(most) - at(least));
  }

  function show_detail({ cell, text, runs }) {
    const links = runs.flatMap(([run, replicate, shown], place) => [place ? ", " : "", make("a", { href: address_of(run), textContent: `replicate ${replicate}: ${shown}` })]);
    detail.replaceChildren(make("b", { textContent: cell }), ` ${text}. `, ...links);
  }

  function field_button(field) {
    if (field.value === null) return make("span", { textContent: field.label, title: field.cell });
    const at = Math.round(share_of(field.value) * (map.palette.length - 1));
    const button = make("button", { type: "button" }, make("b", { textContent: field.label }), make("span", { textContent: field.bounds }));
    button.setAttribute("aria-label", `${field.cell}: ${field.text}`);
    button.style.background = map.palette[at];
    button.style.color = at < map.n_dark ? "#fff" : "#000";
    ["mouseenter", "focus", "click"].forEach((event) => button.addEventListener(event, () => show_detail(field)));
    return button;
  }

  function table_of(panel) {
    const head = make("tr", {}, make("td", { className: "axis", textContent: map.axis }), ...map.columns.map((level) => make("th", { scope: "col", textContent: level })));
    const rows = map.rows.map((label, row) => {
      const fields = map.columns.map((_, column) => panel.fields.find((field) => field.row === row && field.column === column));
      return make("tr", {}, make("th", { scope: "row", textContent: label }), ...fields.map((field) => make("td", {}, ...(field ? [field_button(field)] : []))));
    });
    const caption = make("caption", { textContent: panel.title.replaceAll("\n", ", ") });
    return make("table", { className: "heat-map" }, caption, make("thead", {}, head), make("tbody", {}, ...rows));
  }

  function draw() {
    const text_of = (value) => map.panels.flatMap((panel) => panel.fields).find((field) => field.value === value).label;
    const scale = make("span", { className: "scale" });
    scale.style.background = `linear-gradient(to right, ${map.palette.filter((_, place) => place % 15 === 0).join(", ")})`;
    legend_box.replaceChildren(make("span", { className: "ideal" }, `${map.quantity}: `, text_of(least), scale, text_of(most)));
    panels_box.replaceChildren(...map.panels.map(table_of), detail);
    button("logarithmic").setAttribute("aria-pressed", String(logarithmic));
  }

  legend_box.removeAttribute("aria-label");
  legend_box.removeAttribute("role");
  panels_box.setAttribute("role", "group");
  button("logarithmic").textContent = "Logarithmic colours";
  button("logarithmic").disabled = !(least > 0);
  button("logarithmic").addEventListener("click", () => { logarithmic = !logarithmic; draw(); });
  button("reset").hidden = true;
  box.querySelector(".hint")?.remove();
  button("picture").addEventListener("click", () => button("picture").setAttribute("aria-pressed", String(!box.classList.toggle("drawn-live"))));
  box.querySelector(".live").hidden = false;
  box.classList.add("drawn-live");
  draw();
  return { resize() {} };
}

const drawn_figures = new Map();

async function draw_figure(box) {
  const chart = JSON.parse(await unpack(`chart-${box.dataset.figure}`));
  if (chart.palette) return draw_heat_map(box, chart);
  const Bokeh = await charts();
  const live = box.querySelector(".live");
  const [panels_box, legend_box] = [live.querySelector(".panels"), live.querySelector(".legend")];
  const button = (action) => box.querySelector(`[data-action=${action}]`);
  const hidden = new Set();
  const has_ideal = chart.panels.some((panel) => panel.ideals.length);
  const has_estimate = chart.panels.some((panel) => panel.estimates.length);
  const state = { logarithmic: chart.logarithmic, all: chart.panels.length <= MAX_PANELS, width: 0 };
  let views = [];
  let glyphs = [];

  async function draw() {
    state.width = panels_box.clientWidth;
    const drawn = state.all ? chart.panels : chart.panels.slice(0, MAX_PANELS);
    const longest = Math.max(...chart.ticks.map(([, label]) => label.length));
    const label_px = chart.horizontal ? Math.round(Math.min(longest * CHARACTER_PX + 14, 0.6 * state.width)) : 0;
    const columns = columns_of(chart, state.width, label_px);
    const inner = Math.floor((state.width - label_px - (columns - 1) * GAP_PX) / columns);
    views.forEach((view) => view.remove());
    panels_box.replaceChildren();
    glyphs = chart.series.map(() => []);
    views = [];
    for (const [index, panel] of drawn.entries()) {
      const first = index % columns === 0;
      const range = range_of(chart.panels, panel.quantity, state.logarithmic);
      const size = { width: Math.min(inner, 560) + (chart.horizontal && first ? label_px : 0), height: chart.horizontal ? chart.ticks.length * ROW_PX + 56 : PANEL_PX };
      const figure = panel_figure(Bokeh, chart, panel, { range, logarithmic: state.logarithmic, label_px, first, ...size });
      const pointed = [];
      panel.ideals.filter(({ series }) => series === null).forEach((curve) => line_of(Bokeh, figure, curve, { line_color: theme_colours().ideal }));
      mark_out_of_memory(Bokeh, figure, chart, panel, range[0]);
      chart.series.forEach((_, series_index) => glyphs[series_index].push(...series_glyphs(Bokeh, figure, chart, panel, series_index, state.logarithmic, pointed)));
      const title = make("p", { className: "panel-title", textContent: panel.title.replaceAll("\n", ", ") });
      if (columns > 1 && first) title.style.paddingLeft = `${label_px}px`;
      const frame = make("div", { className: "panel-frame" });
      frame.addEventListener("click", () => {
        const [run] = pointed.flatMap((runs_at) => runs_at());
        if (run) location.hash = address_of(run);
      });
      const panel_box = make("div", { className: "panel" }, title, frame);
      panel_box.style.width = `${size.width}px`;
      panels_box.append(panel_box);
      const view = await Bokeh.Plotting.show(figure, frame);
      place_tooltips(frame, view);
      views.push(view);
    }
    hidden.forEach((series_index) => glyphs[series_index].forEach((glyph) => { glyph.visible = false; }));
    button("logarithmic").setAttribute("aria-pressed", String(state.logarithmic));
    button("more").hidden = state.all;
    button("more").textContent = `Show all ${chart.panels.length} panels`;
  }

  function legend() {
    const buttons = chart.series.map((series, series_index) => {
      const entry = legend_button(series.name, swatch_of(series), () => {
        if (!hidden.delete(series_index)) hidden.add(series_index);
        glyphs[series_index].forEach((glyph) => { glyph.visible = !hidden.has(series_index); });
        return !hidden.has(series_index);
      });
      entry.setAttribute("aria-pressed", String(!hidden.has(series_index)));
      return entry;
    });
    const line_entry = (name, dash) => make("span", { className: "ideal" }, swatch_of({ colour: theme_colours().ideal, marker: null, dash }), name);
    legend_box.replaceChildren(...buttons, ...(has_ideal ? [line_entry("ideal", [])] : []), ...(has_estimate ? [line_entry("model estimate", ESTIMATE_DASH)] : []));
  }

  button("logarithmic").addEventListener("click", () => { state.logarithmic = !state.logarithmic; draw(); });
  button("reset").addEventListener("click", draw);
  button("more").addEventListener("click", () => { state.all = true; draw(); });
  button("picture").addEventListener("click", () => {
    const picture = box.classList.toggle("drawn-live") === false;
    button("picture").setAttribute("aria-pressed", String(picture));
    if (!picture && panels_box.clientWidth !== state.width) draw();
  });
  live.hidden = false;
  box.classList.add("drawn-live");
  theme_listeners.add(() => { legend(); return draw(); });
  legend();
  await draw();
  return {
    resize() {
      if (panels_box.clientWidth && panels_box.clientWidth !== state.width) draw();
    },
  };
}

const figure_once = once(async (box) => {
  const figure = await draw_figure(box);
  drawn_figures.set(box, figure);
});

// Figures are drawn when they come near the part of the page that is seen, so that a page of many opens quickly.
const near = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    near.unobserve(entry.target);
    figure_once(entry.target).catch((error) => show_trouble(`Figure ${entry.target.dataset.figure} cannot be drawn: ${error.message}`));
  }
}, { rootMargin: "600px" });

function draw_near() {
  for (const box of document.querySelectorAll("[data-figure]")) if (box.querySelector(".live") && is_shown(box.querySelector(".live")) && !drawn_figures.has(box)) near.observe(box);
}

// On a phone, where a wide picture moves sideways in its frame, its legend is text above it, and the names of its rows stay in sight.
// Swatches and names are cut out of the picture, at the places (in points) that its SVG, written by Matplotlib, gives them.

const PHONE = matchMedia("(max-width: 45rem)");
const PHONE_PICTURE_PX = 672; // as in page.css

function picture_layout(svg) {
  const numbers = (text) => (text.match(/-?[\d.]+/g) ?? []).map(Number);
  const at = (element, name) => Number(element.getAttribute(name));
  const texts = [...svg.querySelectorAll("text")];
  const is_legend = (text) => text.closest("g[id^=legend]") !== null;
  const entries = texts.filter(is_legend).map((text) => {
    const em = parseFloat(text.style.fontSize);
    const xs = [];
    for (let part = text.closest("g[id^=text]").previousElementSibling; part && !part.id.startsWith("text"); part = part.previousElementSibling) {
      part.querySelectorAll(":scope > path").forEach((path) => xs.push(...numbers(path.getAttribute("d")).filter((_, index) => index % 2 === 0)));
      part.querySelectorAll("use").forEach((mark) => xs.push(at(mark, "x") - em / 2, at(mark, "x") + em / 2));
    }
    const left = Math.min(...xs) - 1;
    return { label: text.textContent, bottom: at(text, "y") + em / 3, box: xs.length ? [left, at(text, "y") - 1.05 * em, Math.max(...xs) + 1 - left, 1.4 * em] : null };
  });
  const bottom = Math.max(0, ...entries.map((entry) => entry.bottom));
  const base = (text) => (text.hasAttribute("y") ? at(text, "y") : numbers(text.getAttribute("transform"))[1]); // lines of a title are moved
  const is_on_top = texts.every((text) => is_legend(text) || base(text) > bottom);
  const panels = [...svg.querySelectorAll("g[id^=axes]")].map((axes) => [axes, numbers(axes.querySelector("path").getAttribute("d"))[0]]);
  const left = Math.min(...panels.map(([, start]) => start));
  const has_names = ([axes, start]) => start > left + 1 && [...axes.querySelectorAll("text[x]")].some((text) => text.style.textAnchor === "end" && at(text, "x") < start);
  const [, , width, height] = numbers(svg.getAttribute("viewBox"));
  return { entries, width, height, top: is_on_top ? bottom : 0, left: panels.length && !panels.some(has_names) ? left - 1 : 0 };
}

const keep_in_sight = once(async (frame) => {
  const picture = frame.querySelector("img");
  const text = await unpack(`file-${frame.closest("[data-figure]").dataset.figure}.svg`);
  const { entries, width, height, top, left } = picture_layout(new DOMParser().parseFromString(text, "image/svg+xml").documentElement);
  const scale = Math.min(picture.getAttribute("width"), PHONE_PICTURE_PX) / width;
  const cut = (className, x, y, w, h) => {
    const part = make("span", { className, attributes: { "aria-hidden": "true" } });
    Object.assign(part.style, { width: `${w * scale}px`, height: `${h * scale}px`, background: `#fff url("${picture.src}") ${-x * scale}px ${-y * scale}px / ${width * scale}px auto no-repeat` });
    return part;
  };
  const legend = entries.map(({ label, box }) => make("span", {}, ...(box ? [cut("cut", ...box)] : []), label));
  frame.prepend(...(legend.length ? [make("div", { className: "legend" }, ...legend)] : []), ...(left > 0 ? [cut("names", 0, top, left, height - top)] : []));
  frame.style.setProperty("--top", `${top * scale}px`);
});

function keep_shown() {
  if (PHONE.matches) document.querySelectorAll(".picture.wide").forEach((frame) => { if (is_shown(frame)) keep_in_sight(frame); });
}

function files_of_figures() {
  const types = { svg: "image/svg+xml", png: "image/png", pdf: "application/pdf" };
  for (const button of document.querySelectorAll("[data-save]")) {
    const name = button.dataset.save;
    button.addEventListener("click", async () => save(name, await unpacked(`file-${name}`).blob(), types[name.split(".").pop()]));
  }
}

function resizing() {
  let waiting = 0;
  window.addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => drawn_figures.forEach((figure) => figure.resize()), 200);
  });
}
