// Result tables: sorted by a click on a heading, searched and shown in pages where they are long.

const drawn_tables = new Map();

// Search and pages stay in place: it is the table alone that moves sideways, which a keyboard has to reach.
function frame(table) {
  const [outer, inner] = [table.closest(".scroll"), table.parentElement];
  for (const name of ["tabindex", "role", "aria-label"]) {
    inner.setAttribute(name, outer.getAttribute(name));
    outer.removeAttribute(name);
  }
  inner.classList.add("scroll");
}

// On a phone, where a row is a list without headings, a field chooses the column by which a table is sorted, and a button shows all columns.
function sort_field(table, data_table) {
  const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  const listed = data_table.order();
  const select = make("select", {}, make("option", { value: "", textContent: "as listed" }), ...names.map((textContent, index) => make("option", { value: String(index), textContent })));
  select.addEventListener("change", () => data_table.order(select.value === "" ? listed : [[data_table.column.index("fromVisible", Number(select.value)), "asc"]]).draw());
  const all = make("button", { type: "button", textContent: "All columns", hidden: !table.querySelector(".secondary"), attributes: { "aria-pressed": "false" } });
  all.addEventListener("click", () => all.setAttribute("aria-pressed", String(table.classList.toggle("all"))));
  table.closest(".dt-container").before(make("div", { className: "sort-by" }, make("label", {}, "Sort by ", select), all));
}

const sortable = once(async (table) => {
  const DataTable = await tables();
  const paged = "paged" in table.dataset;
  drawn_tables.set(table, new DataTable(table, {
    autoWidth: false,
    order: [],
    paging: paged,
    searching: paged,
    info: paged,
    pageLength: page_rows,
    lengthMenu: [page_rows, 50, { label: "all", value: -1 }],
    layout: { topStart: null, topEnd: paged ? "search" : null, bottomStart: paged ? ["info", "pageLength"] : null, bottomEnd: paged ? "paging" : null },
    language: { search: "Search", info: "_START_ to _END_ of _TOTAL_ rows", infoFiltered: "(of _MAX_ in all)", infoEmpty: "no row", lengthMenu: "show _MENU_", zeroRecords: "No row matches the search." },
  }));
  frame(table);
  sort_field(table, drawn_tables.get(table));
});

const is_shown = (element) => element.closest("details:not([open])") === null;

function sort_shown(place_of = document) {
  const shown_tables = [...place_of.querySelectorAll("table[data-sortable]")].filter(is_shown);
  return Promise.all(shown_tables.map(sortable));
}

// Folded parts: the target of a link is opened; on paper all but sources are open, and tables have all their rows.

let prints = false;

function unfold(element) {
  for (let fold = element?.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
}

function target_of_address() {
  try {
    return location.hash.length > 1 ? by_id(decodeURIComponent(location.hash.slice(1))) : null;
  } catch {
    return null; // a hand-made address
  }
}

function folding() {
  document.addEventListener("toggle", (event) => {
    if (event.target.open && !prints && event.target.querySelector) {
      sort_shown(event.target);
      draw_near();
      keep_shown();
    }
  }, true);
  const open_target = () => {
    const target = target_of_address();
    if (!target || is_shown(target) && !target.matches("details")) return;
    unfold(target);
    target.scrollIntoView();
  };
  window.addEventListener("hashchange", open_target);
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href^='#']");
    if (link && link.hash === location.hash) open_target(); // the address does not change
  });
  open_target();
}

function printing(table_of_all_runs) {
  let restore = [];
  window.addEventListener("beforeprint", () => {
    prints = true;
    const folded = [...document.querySelectorAll("main details:not([open])")];
    folded.forEach((fold) => { fold.open = true; });
    restore = folded.map((fold) => () => { fold.open = false; });
    for (const table of [table_of_all_runs, ...drawn_tables.values()]) {
      const length = table.page.len();
      table.page.len(-1).draw(false);
      restore.push(() => table.page.len(length).draw(false));
    }
  });
  window.addEventListener("afterprint", () => {
    restore.forEach((step) => step());
    restore = [];
    prints = false;
  });
}

// Sources of tables.

const source = once(async (name) => JSON.parse(await unpack(`source-${name}`)));

function save(name, content, type) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

function sources_of_tables() {
  for (const button of document.querySelectorAll("[data-csv]")) {
    button.addEventListener("click", async () => save(`${button.dataset.csv}.csv`, (await source(button.dataset.csv)).csv, "text/csv"));
  }
}
