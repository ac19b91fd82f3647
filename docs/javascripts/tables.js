// On a phone, cells of a table that is wider than the page stand below each other (site.css), each after its heading.
const PHONE = matchMedia("(max-width: 599px)");

function stackWideTables() {
  for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
    delete table.dataset.stacked;
    if (PHONE.matches && table.scrollWidth > table.closest("article").clientWidth) table.dataset.stacked = "";
  }
}

function labelCells() {
  for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
    const headings = [...table.querySelectorAll("thead th")].map((heading) => heading.textContent.trim());
    for (const row of table.querySelectorAll("tbody tr"))
      [...row.cells].forEach((cell, column) => { if (headings[column]) cell.dataset.heading = headings[column]; });
  }
}

addEventListener("load", () => { labelCells(); stackWideTables(); });
PHONE.addEventListener("change", stackWideTables);
