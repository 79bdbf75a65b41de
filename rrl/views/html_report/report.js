"use strict";

// Everything is on the page without this: it adds the readout over the time axis, and sorts tables.

const MOST_PRINTED = 100; // rows of a table that is folded away

function readout(figure, data) {
  const cursor = figure.querySelector(".cursor");
  const box = figure.querySelector(".readout");
  const plot = figure.querySelector("svg.plot");
  const ends = data.rows.map((row) => row[0]);
  let shown = -1;

  figure.querySelectorAll("title").forEach((title) => title.remove()); // the readout tells the same
  document.querySelectorAll(".scripted").forEach((note) => { note.hidden = false; });

  function line(text, name) {
    if (!text) return;
    const part = document.createElement("div");
    part.className = name;
    part.textContent = text;
    box.append(part);
  }

  function show(i) {
    shown = Math.max(0, Math.min(data.rows.length - 1, i));
    const [end, when, kind, configuration, mean, p95, rate, what, why, remark] = data.rows[shown];
    const begin = shown ? ends[shown - 1] : 0;
    const text = (k) => data.texts[k];
    box.replaceChildren();
    line(`${when} · interval ${shown + 1} · ${text(kind)}`, "when");
    line(text(configuration), "configuration");
    line(`mean ${mean} ms · p95 ${p95} ms · ${rate} requests/s`, "measured");
    line(text(what) && `changed: ${text(what)}`, "what");
    line(text(why), "why");
    line(text(remark), "remark");
    cursor.hidden = box.hidden = false;
    const outer = figure.getBoundingClientRect();
    const inner = plot.getBoundingClientRect();
    const x = inner.left - outer.left + inner.width * (begin + end) / 2;
    cursor.style.left = `${x}px`;
    const room = outer.width - box.offsetWidth;
    const beside = x + 14 > room ? x - box.offsetWidth - 14 : x + 14;
    box.style.left = `${Math.max(0, Math.min(room, beside))}px`;
  }

  function hide() {
    cursor.hidden = box.hidden = true;
    shown = -1;
  }

  function at(event) {
    const inner = plot.getBoundingClientRect();
    const share = (event.clientX - inner.left) / inner.width;
    const i = ends.findIndex((end) => end >= share);
    return i < 0 ? ends.length - 1 : i;
  }

  figure.addEventListener("pointermove", (event) => show(at(event)));
  figure.addEventListener("pointerdown", (event) => show(at(event)));
  figure.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
  figure.addEventListener("keydown", (event) => {
    const last = ends.length - 1;
    const next = { ArrowLeft: shown - 1, ArrowRight: shown + 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") hide();
    if (next === undefined) return;
    event.preventDefault();
    show(shown < 0 && event.key === "ArrowLeft" ? last : next);
  });
  figure.addEventListener("blur", hide);
}

function sortable(table) {
  const body = table.tBodies[0];
  table.querySelectorAll("th[data-sort]").forEach((head) => {
    const column = head.cellIndex;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      table.querySelectorAll("th[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = (row) => {
        const number = parseFloat(row.cells[column].textContent.replaceAll(",", ""));
        return Number.isNaN(number) ? Infinity : number;
      };
      const rows = [...body.rows].sort((a, b) => (up ? 1 : -1) * (value(a) - value(b)));
      body.append(...rows);
    });
  });
}

const figure = document.getElementById("timeline");
if (figure) readout(figure, JSON.parse(document.getElementById("intervals-data").textContent));
document.querySelectorAll("table.sortable").forEach(sortable);
window.addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach((details) => {
    if (details.querySelectorAll("tr").length <= MOST_PRINTED) details.open = true;
  });
});
