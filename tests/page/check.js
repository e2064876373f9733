// What is wrong with a page or a picture as it is laid out in a window of that width: a list of faults in words, empty if there
// are none. (`innerWidth` is no measure: a phone zooms out until everything fits.)
(width) => {
  const faults = [];
  const root = document.documentElement;
  const shown = (element) => element.getClientRects().length > 0;
  const words = (element) => element.textContent.trim().replace(/\s+/g, " ").slice(0, 60);

  if (root.scrollWidth > width) faults.push(`overflow: the page is ${root.scrollWidth} px wide, the window ${width}`);
  for (const element of document.querySelectorAll("body *")) {
    if (!shown(element) || element.closest("svg") !== null) continue;
    const box = element.getBoundingClientRect();
    if (!element.closest(".scroll") && box.right > width + 0.5) faults.push(`overflow: <${element.localName}> ${words(element)}`);
  }
  // What scrolls within a box is there, but nobody who prints or holds a phone gets at it.
  for (const box of document.querySelectorAll(".scroll")) {
    if (box.scrollWidth > box.clientWidth + 1) faults.push(`scrolls: ${box.ariaLabel}, ${box.scrollWidth} px in ${box.clientWidth}`);
  }

  for (const svg of document.querySelectorAll("svg")) {
    if (!shown(svg) || svg.getAttribute("aria-hidden") === "true") continue;
    const name = svg.querySelector("title");
    if (!name || !words(name)) faults.push("unnamed: a picture without a title");
    const frame = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll("text")].filter((text) => text.textContent.trim() && shown(text));
    const boxes = texts.map((text) => text.getBoundingClientRect());
    texts.forEach((text, index) => {
      const box = boxes[index];
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1) {
        faults.push(`clipped: ${words(text)}`);
      }
      const size = parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a;
      const upright = Math.abs(text.getScreenCTM().a) < 1e-6;
      if (!upright && size < 8.5) faults.push(`small: ${words(text)}, ${size.toFixed(1)} px`);
      for (let other = index + 1; other < texts.length; other++) {
        const near = boxes[other];
        // Lines of a text may touch.
        if (box.left < near.right - 1 && near.left < box.right - 1 && box.top < near.bottom - 2 && near.top < box.bottom - 2) {
          faults.push(`overlapping: ${words(text)} and ${words(texts[other])}`);
        }
      }
    });
    for (const node of svg.querySelectorAll("rect.node")) {
      const outer = node.getBoundingClientRect();
      for (const text of node.parentElement.querySelectorAll("text")) {
        const inner = text.getBoundingClientRect();
        const isWithin = inner.left >= outer.left && inner.right <= outer.right && inner.top >= outer.top - 1 && inner.bottom <= outer.bottom + 1;
        if (!isWithin) faults.push(`out of its box: ${words(text)}`);
      }
    }
  }

  if (document.body) {
    if (root.lang !== "en") faults.push("language: none");
    if (!document.title) faults.push("title: none");
    let before = 0;
    for (const heading of document.querySelectorAll("h1, h2, h3, h4")) {
      const level = Number(heading.localName[1]);
      if (level > before + 1) faults.push(`headings: ${words(heading)} is h${level} after h${before}`);
      before = level;
    }
    for (const link of document.querySelectorAll("a")) {
      const to = link.getAttribute("href");
      if (!to.startsWith("#") || !document.getElementById(to.slice(1))) faults.push(`link: ${to} leads nowhere`);
    }
    const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
    if (new Set(ids).size !== ids.length) faults.push("ids: not unique");
    for (const table of document.querySelectorAll("table")) {
      const columns = table.tHead.rows[0].cells.length;
      for (const row of table.tBodies[0].rows) {
        if (row.cells.length !== columns) faults.push(`table: ${words(row)} has ${row.cells.length} of ${columns} cells`);
      }
    }
  }
  return faults;
}
