// The start: colours, contents, tables, figures, and then the chart of runs, for which the largest library is unpacked.

const THEME = "ringside-theme";

function remembered(value) {
  try {
    if (value !== undefined) localStorage.setItem(THEME, value);
    return localStorage.getItem(THEME);
  } catch {
    return null; // a page from a file may not remember anything
  }
}

function theme() {
  const preferred = matchMedia("(prefers-color-scheme: dark)");
  const button = by_id("theme");
  let chosen = remembered();
  const apply = () => {
    const dark = chosen ? chosen === "dark" : preferred.matches;
    document.documentElement.classList.toggle("dark", dark);
    document.documentElement.classList.toggle("light", !dark);
    button.setAttribute("aria-pressed", String(dark));
    theme_listeners.forEach((draw) => draw());
  };
  button.addEventListener("click", () => {
    chosen = document.documentElement.classList.contains("dark") ? "light" : "dark";
    remembered(chosen);
    apply();
  });
  preferred.addEventListener("change", apply);
  button.hidden = false;
  apply();
}

function contents() {
  const wide = matchMedia("(min-width: 75rem)");
  const fold = () => { by_id("contents").open = wide.matches; };
  wide.addEventListener("change", fold);
  fold();
  by_id("contents").addEventListener("click", (event) => {
    if (event.target.closest("a") && !wide.matches) by_id("contents").open = false;
  });
}

// On a screen without a pointer that hovers, the first tap on a mark shows its details, and the second follows its link.
function marks() {
  for (const mark of document.querySelectorAll(".marks a:not([data-detail=''])")) {
    let was_shown = false;
    mark.addEventListener("pointerdown", () => { was_shown = mark === document.activeElement; });
    mark.addEventListener("click", (event) => {
      if (event.detail && !was_shown && matchMedia("(hover: none)").matches) {
        event.preventDefault();
        mark.focus();
      }
    });
  }
}

try {
  theme();
  marks();
  contents();
  sources_of_tables();
  files_of_figures();
  closing();
  folding();
  resizing();
  const table = await table_of_runs();
  frame(by_id("run-table"));
  sort_field(by_id("run-table"), table);
  let chart = { refresh() {} };
  filters(table, () => chart.refresh());
  printing(table);
  route();
  await sort_shown();
  document.documentElement.dataset.ready = "table";
  draw_near();
  keep_shown();
  PHONE.addEventListener("change", keep_shown);
  chart = await chart_of_runs(table);
  document.documentElement.dataset.ready = "all";
} catch (error) {
  show_trouble(`Charts and tables cannot be shown in this browser: ${error.message}`);
  throw error;
}
