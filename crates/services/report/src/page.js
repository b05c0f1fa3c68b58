for (const table of document.querySelectorAll("table.sort")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    if (!head.textContent) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") === "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => row.cells[column].dataset.v;
      const order = (a, b) => key(a) !== undefined && key(b) !== undefined
        ? key(a) - key(b)
        : a.cells[column].textContent.localeCompare(b.cells[column].textContent);
      body.append(...[...body.rows].sort((a, b) => (up ? 1 : -1) * order(a, b)));
    });
  });
}
for (const block of document.querySelectorAll("pre")) {
  const button = document.createElement("button"), code = block.firstChild;
  button.type = "button";
  button.textContent = "Copy";
  block.append(button);
  button.addEventListener("click", async () => {
    getSelection().selectAllChildren(code);
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      // The text is selected: the keyboard copies it.
    }
  });
}
