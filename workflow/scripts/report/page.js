// The page's program, which page_tables.js, page_figures.js and page_start.js continue. Here: the table of runs with its filters, the
// chart of them, and what opens on a click. All text of others is set as text, never as HTML.

const data = JSON.parse(document.getElementById("page-data").textContent);
const by_id = (id) => document.getElementById(id);
const place = Object.fromEntries(data.columns.map((column, index) => [column.name, index]));
const number = new Map(data.rows.map((row, index) => [row[place.run_id], index]));
const page_rows = matchMedia("(max-width: 45rem)").matches ? data.page_rows / 2 : data.page_rows; // a row is a list there
const NOT_OK = "not ok";
const NO_LEVEL = "–";

function make(name, properties = {}, ...children) {
  const { attributes = {}, ...others } = properties;
  const element = Object.assign(document.createElement(name), others);
  Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
  element.append(...children);
  return element;
}

function show_trouble(text) {
  by_id("trouble").textContent = text;
  by_id("trouble").hidden = false;
}

// Packed blocks and the libraries in them.

function unpacked(id) {
  const bytes = Uint8Array.from(atob(by_id(id).textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
}

const unpack = (id) => unpacked(id).text();

function once(load) {
  const loaded = new Map();
  return (key) => {
    if (!loaded.has(key)) loaded.set(key, load(key));
    return loaded.get(key);
  };
}

async function script(id) {
  const address = URL.createObjectURL(new Blob([await unpack(id)], { type: "text/javascript" }));
  await new Promise((resolve, reject) => {
    document.head.append(make("script", { src: address, onload: resolve, onerror: reject }));
  });
  URL.revokeObjectURL(address);
}

const charts = once(async () => {
  for (let part = 0; by_id(`charts-script-${part}`); part += 1) await script(`charts-script-${part}`);
  window.Bokeh.set_log_level("error");
  return window.Bokeh;
});

const tables = once(async () => {
  const address = URL.createObjectURL(new Blob([await unpack("tables-script")], { type: "text/javascript" }));
  const module = await import(address);
  URL.revokeObjectURL(address);
  return module.default;
});

const block = once(async (id) => JSON.parse(await unpack(id)));

async function details(id) {
  const at = number.get(id);
  const some = await block(`block-${Math.floor(at / data.in_block)}`);
  return some[at % data.in_block];
}

// The table of runs.

const legend_button = (name, swatch, toggle) => {
  const button = make("button", { type: "button", attributes: { "aria-pressed": "true" } }, swatch, String(name));
  button.addEventListener("click", () => button.setAttribute("aria-pressed", String(toggle())));
  return button;
};

const shown = (value, column) =>
  value === null ? NO_LEVEL : column.decimals !== null ? value.toFixed(column.decimals).replace("-", "−") : String(value);
const address_of = (id) => `#run=${encodeURIComponent(id)}`;

function broken_at_dots(text) {
  const parts = text.split(".");
  return parts.flatMap((part, index) => (index + 1 < parts.length ? [`${part}.`, make("wbr")] : [part]));
}

const is_number = (column) => ["order", "number", "level"].includes(column.kind);

// DataTables reads what it searches as HTML, and is told it as such.
const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

function drawn(column) {
  return (value, type, row) => {
    if (type === "filter") return escaped(value === null ? "" : shown(value, column));
    if (type !== "display") return value ?? (is_number(column) ? null : "");
    if (column.kind !== "order") return document.createTextNode(shown(value, column));
    const id = row[place.run_id];
    return make("a", { href: address_of(id), textContent: value === null ? "open" : value, title: id, attributes: { "aria-label": id } });
  };
}

async function table_of_runs() {
  const DataTable = await tables();
  const table = new DataTable("#run-table", {
    data: data.rows,
    columns: data.columns.map((column, index) => ({
      data: index,
      title: column.title,
      className: is_number(column) ? "number" : column.name,
      type: is_number(column) ? "num" : "string",
      visible: !column.hidden,
      createdCell: (element) => {
        element.dataset.label = column.title;
        element.classList.toggle("secondary", column.kind === "run" || (column.kind === "number" && column.name !== "epoch_time_s"));
      },
      render: drawn(column),
    })),
    createdRow: (element, row) => element.classList.toggle("bad", row[place.status] !== "ok"),
    order: [[place.order, "asc"]],
    autoWidth: false,
    deferRender: true,
    pageLength: page_rows,
    lengthMenu: [page_rows, 50, 100, { label: "all", value: -1 }],
    layout: { topStart: null, topEnd: null, bottomStart: ["info", "pageLength"], bottomEnd: "paging" },
    language: { info: "_START_ to _END_ of _TOTAL_ runs", infoFiltered: "(of _MAX_ in all)", infoEmpty: "no run", lengthMenu: "show _MENU_", zeroRecords: "No run matches the search and the filters." },
  });
  by_id("run-table").tBodies[0].addEventListener("click", (event) => {
    const row = table.row(event.target.closest("tr")).data();
    if (row && !event.target.closest("a")) location.hash = address_of(row[place.run_id]);
  });
  return table;
}

function levels_of(column) {
  const at = place[column.name];
  const found = [...new Set(data.rows.map((row) => row[at]))];
  return found.sort((a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b))));
}

function filters(table, changed) {
  const chosen = new Map();
  const selects = data.columns.filter((column) => column.choose && levels_of(column).length > 1).map((column) => {
    const select = make("select", { attributes: { "data-filter": column.name } }, make("option", { value: "", textContent: "all" }));
    levels_of(column).forEach((level, index) => select.append(make("option", { value: String(index), textContent: shown(level, column) })));
    select.addEventListener("change", () => {
      if (select.value === "") chosen.delete(place[column.name]);
      else chosen.set(place[column.name], levels_of(column)[Number(select.value)]);
      apply();
    });
    by_id("filters").append(make("label", {}, column.title, select));
    return select;
  });

  function apply() {
    const wanted = [...chosen];
    table.search.fixed("levels", wanted.length ? (text, row) => wanted.every(([at, level]) => row[at] === level) : null);
    table.search(by_id("search").value).draw();
    changed();
  }

  by_id("search").addEventListener("input", apply);
  by_id("clear").addEventListener("click", () => {
    by_id("search").value = "";
    selects.forEach((select) => { select.value = ""; });
    chosen.clear();
    apply();
  });
}

// The chart of runs: a point for each, in groups by colour.

function grouped(name) {
  const column = data.columns[place[name]];
  const value_of = name === "series" ? (row, index) => data.series[index] : (row) => shown(row[place[name]], column);
  const groups = new Map();
  data.rows.forEach((row, index) => {
    if (row[place.epoch_time_s] == null || row[place.order] === null) return;
    const group = row[place.status] === "ok" ? value_of(row, index) : NOT_OK;
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(index);
  });
  const names = [...groups.keys()].filter((group) => group !== NOT_OK);
  const order = name === "series" ? Object.keys(data.colours) : levels_of(column ?? {}).map((level) => shown(level, column));
  names.sort((a, b) => order.indexOf(a) - order.indexOf(b));
  const colour = (group, index) => (name === "series" && data.colours[group]) || data.palette[index % data.palette.length];
  const made = names.map((group, index) => ({ group, colour: colour(group, index), marker: "circle", rows: groups.get(group) }));
  if (groups.has(NOT_OK)) made.push({ group: NOT_OK, colour: data.other_colour, marker: "x", rows: groups.get(NOT_OK) });
  return made;
}

const FONT = "system-ui, sans-serif";
const LIGHT = { paper: "#ffffff", ink: "#1f2328", axis: "#57606a", grid: "#e4e7eb", ideal: "#777777" };
const DARK = { paper: "#171717", ink: "#e3e3e3", axis: "#a8a8a8", grid: "#3a3a3a", ideal: "#9a9a9a" };
const is_dark = () => document.documentElement.classList.contains("dark");
const theme_colours = () => (is_dark() ? DARK : LIGHT);
// A series keeps its hue on a dark page (report/dark.py).
const shade = (colour) => (is_dark() && data.dark_colours[colour]) || colour;

// What is drawn again when the page becomes dark or light.
const theme_listeners = new Set();

function axis_style() {
  const { ink, axis } = theme_colours();
  return {
    major_label_text_font: FONT,
    axis_label_text_font: FONT,
    axis_line_color: axis,
    major_tick_line_color: axis,
    minor_tick_line_color: null,
    major_label_text_color: ink,
    axis_label_text_color: ink,
    axis_label_text_font_style: "normal",
    major_label_text_font_size: "12px",
    axis_label_text_font_size: "13px",
  };
}

function new_figure(Bokeh, options) {
  const figure = new Bokeh.Plotting.Figure({
    sizing_mode: "stretch_width",
    toolbar_location: null,
    tools: [],
    outline_line_color: null,
    background_fill_color: theme_colours().paper,
    border_fill_color: theme_colours().paper,
    ...options,
  });
  for (const axis of figure.axes) axis.setv(axis_style());
  for (const grid of figure.grids) grid.grid_line_color = grid.dimension === 1 ? theme_colours().grid : null;
  return figure;
}

// An axis from 0 whose marks all have the same decimals.
function from_zero(Bokeh, figure, most) {
  const rough = (1.05 * most) / 4;
  const power = Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((digit) => digit * 10 ** power >= rough) * 10 ** power;
  const ticks = Array.from({ length: 6 }, (_, index) => index * step);
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  for (const axis of figure.yaxes) axis.setv({ ticker: new Bokeh.FixedTicker({ ticks }), formatter: new Bokeh.PrintfTickFormatter({ format: `%.${decimals}f` }) });
  for (const grid of figure.ygrids) grid.ticker = new Bokeh.FixedTicker({ ticks });
}

// Tooltips are opaque, and right of the pointer where the window has room, else above it: never over the labels of rows.
const TOOLTIP_PX = 400;

function place_tooltips(frame, view) {
  const tooltips = () => [...view.tool_views.values()].flatMap((tool) => [...(tool.ttmodels?.values() ?? [])]);
  const { paper, ink, axis } = theme_colours();
  const styles = { opacity: "1", color: ink, "background-color": paper, "border-color": axis };
  frame.addEventListener("pointermove", (event) => {
    const attachment = window.innerWidth - event.clientX > TOOLTIP_PX ? "right" : "above";
    for (const tooltip of tooltips()) tooltip.setv({ attachment, styles });
  }, { capture: true });
}

function whole_numbers(Bokeh, figure) {
  for (const axis of figure.xaxes) axis.ticker = new Bokeh.BasicTicker({ min_interval: 1, num_minor_ticks: 0 });
}

// A logarithmic axis has its marks at 1, 2 and 5, and at more digits where it is short, as plain numbers.
// With a `unit`, the value of one replica, its marks are at the powers of two of that.
function set_log_ticks(Bokeh, axes, grids, low, high, unit = null) {
  const digits = high / low < 4 ? [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8] : [1, 2, 5];
  const ticks = [];
  if (unit) {
    for (let power = Math.floor(Math.log2(low / unit)); power <= Math.ceil(Math.log2(high / unit)); power += 1) ticks.push(unit * 2 ** power);
  } else {
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
      ticks.push(...digits.map((digit) => Number((digit * 10 ** power).toPrecision(2))));
    }
  }
  const ticker = new Bokeh.FixedTicker({ ticks });
  for (const axis of axes) axis.setv({ ticker, formatter: new Bokeh.PrintfTickFormatter({ format: "%g" }) });
  for (const grid of grids) grid.ticker = ticker;
}

async function chart_of_runs(table) {
  const Bokeh = await charts();
  const drawn_rows = data.rows.filter((row) => row[place.epoch_time_s] != null && row[place.order] !== null);
  const times = drawn_rows.map((row) => row[place.epoch_time_s]);
  if (!times.length) {
    by_id("chart").textContent = "No run has an epoch time.";
    return { refresh() {} };
  }
  const [low, high] = [times.reduce((a, b) => Math.min(a, b)), times.reduce((a, b) => Math.max(a, b))];
  const log = high > data.log_from * low;
  const options = [["series", data.series_title], ...data.columns.filter((column) => column.choose && column.title !== data.series_title).map((column) => [column.name, column.title])];
  by_id("colour").append(...options.map(([value, textContent]) => make("option", { value, textContent })));
  let groups = [];
  let view = null;

  function points(rows) {
    const left = new Set(table.rows({ search: "applied" }).indexes().toArray());
    const some = rows.filter((index) => left.has(index));
    const of = (name) => some.map((index) => data.rows[index][place[name]]);
    return { x: of("order"), y: of("epoch_time_s"), run: of("run_id"), status: of("status") };
  }

  function glyphs(figure, { group, colour: printed, marker, rows }) {
    const colour = shade(printed);
    const source = new Bokeh.ColumnDataSource({ data: points(rows) });
    const opaque = { fill_alpha: 0.75, nonselection_fill_alpha: 0.75, nonselection_line_alpha: 1 };
    const glyph = figure.scatter({ field: "x" }, { field: "y" }, { source, marker, size: 6, line_color: colour, fill_color: colour, ...opaque });
    const tooltips = [["run", "@run"], ["epoch time", "@y{0.000} s"], ["status", "@status"]];
    figure.add_tools(new Bokeh.HoverTool({ renderers: [glyph], tooltips, visible: false, show_arrow: false }), new Bokeh.TapTool({ renderers: [glyph], visible: false }));
    source.selected.properties.indices.change.connect(() => {
      const [first] = source.selected.indices;
      if (first === undefined) return;
      const id = points(rows).run[first];
      source.selected.indices = [];
      location.hash = address_of(id);
    });
    return { group, colour: printed, marker, rows, source, glyph };
  }

  function legend() {
    by_id("legend").replaceChildren(...groups.map(({ group, colour, marker, glyph }) => {
      return legend_button(group, swatch_of({ colour, marker, filled: true, dash: null }), () => (glyph.visible = !glyph.visible));
    }));
  }

  async function draw() {
    const last = drawn_rows.reduce((most, row) => Math.max(most, row[place.order]), 1);
    const figure = new_figure(Bokeh, {
      height: 280,
      tools: "pan,box_zoom,reset",
      active_drag: null,
      toolbar_location: "above",
      x_axis_label: data.order,
      y_axis_label: "epoch time (s)",
      y_axis_type: log ? "log" : "linear",
      x_range: [0, last + 1],
      y_range: log ? [low / 1.3, high * 1.3] : [0, high * 1.06],
    });
    figure.toolbar.logo = null;
    whole_numbers(Bokeh, figure);
    if (log) set_log_ticks(Bokeh, figure.yaxes, figure.ygrids, low, high);
    groups = grouped(by_id("colour").value).map((group) => glyphs(figure, group));
    legend();
    view?.remove();
    by_id("chart").replaceChildren();
    view = await Bokeh.Plotting.show(figure, by_id("chart"));
    place_tooltips(by_id("chart"), view);
  }

  let waiting = 0;
  const refresh = () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => groups.forEach(({ source, rows }) => { source.data = points(rows); }), 120);
  };
  by_id("colour").addEventListener("change", draw);
  theme_listeners.add(draw);
  await draw();
  return { refresh };
}

// What opens on a click.

const CURVES = [
  ["Epoch time (s)", [["epoch_time_s", "epoch time", "#004488"]]],
  ["Loss", [["train_loss", "training", "#004488"], ["validation_loss", "validation", "#bb5566"]]],
  ["Accuracy (%)", [["train_accuracy", "training", "#004488"], ["validation_accuracy", "validation", "#bb5566"]]],
];

async function curves(epochs, into) {
  const Bokeh = await charts();
  for (const [title, lines] of CURVES) {
    const there = lines.filter(([name]) => epochs[name]);
    if (!there.length) continue;
    const frame = make("div", { className: "drawn", attributes: { role: "img", "aria-label": `${title} by epoch; the numbers are below` } });
    into.append(make("div", {}, make("h4", { textContent: title }), frame));
    const times = title.startsWith("Epoch time") ? epochs.epoch_time_s.filter((value) => value !== null) : [];
    const most = Math.max(0, ...times);
    const figure = new_figure(Bokeh, { height: 210, x_axis_label: "epoch", ...(most ? { y_range: [0, 1.05 * most] } : {}) });
    whole_numbers(Bokeh, figure);
    if (most) from_zero(Bokeh, figure, most);
    for (const [name, label, printed] of there) {
      const colour = shade(printed);
      const values = epochs[name].map((value) => (value ?? NaN) * (name.endsWith("accuracy") ? 100 : 1));
      const source = new Bokeh.ColumnDataSource({ data: { x: epochs.epoch, y: values } });
      const legend = there.length > 1 ? { legend_label: label } : {};
      figure.line({ field: "x" }, { field: "y" }, { source, line_color: colour, line_width: 1.5, line_dash: name.startsWith("validation") ? [5, 3] : [], ...legend });
      const warm = new Bokeh.ColumnDataSource({ data: { x: epochs.epoch, y: values, fill: epochs.epoch.map((epoch, index) => (index < epochs.warm_up ? theme_colours().paper : colour)) } });
      if (values.length <= 60) figure.scatter({ field: "x" }, { field: "y" }, { source: warm, size: 5, line_color: colour, fill_color: { field: "fill" }, ...legend });
    }
    if (there.length > 1) figure.legend.setv({ location: title.startsWith("Accuracy") ? "bottom_right" : "top_right", border_line_color: null, background_fill_color: theme_colours().paper, background_fill_alpha: 0.7, label_text_color: theme_colours().ink, label_text_font: FONT, label_text_font_size: "11px", padding: 2, spacing: 0 });
    await Bokeh.Plotting.show(figure, frame);
  }
}

function table_of_epochs(epochs) {
  const names = Object.keys(epochs).filter((name) => Array.isArray(epochs[name]));
  const head = make("tr", {}, ...names.map((name) => make("th", { scope: "col", className: "number", textContent: name })));
  const rows = epochs.epoch.map((_, index) => make("tr", {}, ...names.map((name) => make("td", { className: "number", textContent: epochs[name][index] ?? NO_LEVEL, attributes: { "data-label": name } }))));
  return make("details", {}, make("summary", { textContent: "Epochs as numbers" }), make("div", { className: "scroll high", tabIndex: 0 }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows))));
}

function grid(names, rows) {
  const cell = (value, index) => make(index ? "td" : "th", { className: index ? "number" : "", ...(index ? {} : { scope: "row" }), textContent: value, attributes: { "data-label": names[index] } });
  const head = make("tr", {}, ...names.map((name, index) => make("th", { scope: "col", className: index ? "number" : "", textContent: name })));
  return make("div", { className: "scroll", tabIndex: 0 }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map(cell))))));
}

// Where the time of a traced run's steps went, and that of its start.
function phases({ step, start, ranks, median, slowest }) {
  const of_ranks = ranks > 1 ? [`median rank (${median}), ms`, `slowest rank (${slowest}), ms`] : [];
  const names = ["phase of a step", "share (%)", ranks > 1 ? "mean over ranks (ms)" : "in a step (ms)", ...of_ranks];
  const note = "Steps of the timed epochs. Ranks are ordered by what they compute in a step.";
  return [
    make("h3", { textContent: "Phases" }),
    ...(step.length ? [grid(names, step.map((row) => row.slice(0, names.length))), make("p", { className: "evidence", textContent: note })] : []),
    ...(start.length ? [grid(["at the start, once", "mean over ranks (s)", "longest of a rank (s)"], start)] : []),
  ];
}

function facts(row) {
  const list = make("dl", { className: "facts short" });
  data.columns.forEach((column, index) => {
    if (row[index] !== null && column.kind !== "run") list.append(make("div", {}, make("dt", { textContent: column.title }), make("dd", { textContent: shown(row[index], column) })));
  });
  return list;
}

async function show(id) {
  const row = data.rows[number.get(id)];
  by_id("run-title").replaceChildren(...broken_at_dots(id));
  const into = make("div", { className: "curves" });
  by_id("run-body").replaceChildren(facts(row));
  if (!by_id("run").open) by_id("run").showModal();
  by_id("run").scrollTop = 0;
  by_id("run-title").focus();
  const run = await details(id);
  if (location.hash !== address_of(id)) return; // another one was asked for meanwhile
  const body = by_id("run-body");
  if (run.epochs) body.append(into, make("p", { className: "evidence", textContent: run.epochs.warm_up ? `Hollow markers: warm-up epochs (${run.epochs.warm_up}), which do not count.` : "" }), table_of_epochs(run.epochs));
  if (run.phases) body.append(make("div", { id: "run-phases" }, ...phases(run.phases)));
  if (run.without_phases) body.append(make("p", { className: "evidence", textContent: `Traced, but without phases: ${run.without_phases}.` }));
  body.append(make("h3", { textContent: "Log" }), make("p", { className: "evidence", textContent: run.note }));
  if (run.log) body.append(make("pre", { id: "run-log", tabIndex: 0, textContent: run.log }));
  body.append(make("h3", { textContent: run.record ? "Record" : "Row of runs.csv" }), make("pre", { id: "run-record", tabIndex: 0, textContent: JSON.stringify(run.record ?? run.row, null, 2) }));
  if (run.epochs) await curves(run.epochs, into);
}

function asked_for() {
  try {
    return location.hash.startsWith("#run=") ? decodeURIComponent(location.hash.slice("#run=".length)) : null;
  } catch {
    return null; // a hand-made address
  }
}

function route() {
  const asked = asked_for();
  if (number.has(asked)) show(asked).catch((error) => show_trouble(`The run cannot be shown: ${error.message}`));
  else if (by_id("run").open) by_id("run").close();
}

function closing() {
  by_id("close").addEventListener("click", () => by_id("run").close());
  by_id("run").addEventListener("click", (event) => { if (event.target === by_id("run")) by_id("run").close(); });
  by_id("run").addEventListener("close", () => {
    if (location.hash.startsWith("#run=")) history.replaceState(null, "", "#runs");
  });
  window.addEventListener("hashchange", route);
}
