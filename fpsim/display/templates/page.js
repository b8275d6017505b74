"use strict";
// Sorts and filters tables in place. The page says the same without it.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  const number = (row, i) => parseFloat(row.cells[i].dataset.value);
  const text = (row, i) => row.cells[i].textContent.trim();

  function sort(i) {
    const down = heads[i].getAttribute("aria-sort") === "ascending";
    const numeric = heads[i].dataset.kind === "number";
    const sign = down ? -1 : 1;
    const rows = [...body.rows].sort((a, b) => {
      if (!numeric) return sign * text(a, i).localeCompare(text(b, i), undefined, { numeric: true });
      const [x, y] = [number(a, i), number(b, i)];
      if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y); // what has no number stays at the end
      return x === y ? 0 : sign * (x < y ? -1 : 1);
    });
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[i].setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...rows);
  }

  heads.forEach((head, i) => {
    head.tabIndex = 0;
    head.title = "Sort by this column";
    head.addEventListener("click", () => sort(i));
    head.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        sort(i);
      }
    });
  });

  if (!table.classList.contains("filtered")) continue;
  const line = table.tHead.insertRow();
  const shown = document.createElement("p");
  shown.className = "quiet";
  shown.setAttribute("role", "status");
  table.parentElement.before(shown);
  const inputs = heads.map((head) => {
    const input = document.createElement("input");
    const numeric = head.dataset.kind === "number";
    input.type = "search";
    input.size = 4; // columns are as wide as what they hold
    input.placeholder = numeric ? "< 25" : "filter";
    input.setAttribute("aria-label", `Filter ${head.textContent}` + (numeric ? ", such as < 25 or > 3" : ""));
    input.addEventListener("input", filter);
    const cell = document.createElement("td");
    if (numeric) cell.className = "n";
    cell.append(input);
    line.append(cell);
    return input;
  });

  function fits(row, i, wanted) {
    const limit = heads[i].dataset.kind === "number" && wanted.match(/^([<>])(=?)\s*(-?[\d.]+(?:e-?\d+)?)$/i);
    if (!limit) return text(row, i).toLowerCase().includes(wanted);
    const [x, y] = [number(row, i), parseFloat(limit[3])];
    return limit[1] === "<" ? x < y || (limit[2] && x === y) : x > y || (limit[2] && x === y);
  }

  function filter() {
    const wanted = inputs.map((input) => input.value.trim().toLowerCase());
    let count = 0;
    for (const row of body.rows) {
      row.hidden = !wanted.every((word, i) => !word || fits(row, i, word));
      count += !row.hidden;
    }
    shown.textContent = wanted.some(Boolean) ? `${count} of ${body.rows.length} rows` : "";
  }
}
