// Tables are sorted by the head that is pressed: the greatest first, the least first, as they were. The page says everything
// without this.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  const value = (row, column) => {
    const { key } = row.cells[column].dataset;
    return key === undefined ? row.cells[column].textContent.trim() : key === "" ? null : Number(key);
  };
  const compare = (column, sign) => (a, b) => {
    const [left, right] = [value(a, column), value(b, column)];
    if (left === null || right === null) return (left === null) - (right === null);
    return sign * (typeof left === "number" ? left - right : left.localeCompare(right));
  };
  heads.forEach((head, column) => {
    if (!head.textContent.trim() || rows.length < 2) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    const isText = typeof value(rows[0], column) === "string";
    const order = isText ? ["none", "ascending", "descending"] : ["none", "descending", "ascending"];
    button.addEventListener("click", () => {
      const next = order[(order.indexOf(head.getAttribute("aria-sort")) + 1) % 3];
      heads.forEach((other) => other.hasAttribute("aria-sort") && other.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", next);
      const sorted = next === "none" ? rows : rows.toSorted(compare(column, next === "ascending" ? 1 : -1));
      body.append(...sorted);
    });
  });
  table.classList.add("sortable");
}
