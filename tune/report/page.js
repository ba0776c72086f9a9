// Draws the figures of a report: unpacks plotly and the figures from the page itself, and follows the page's look.
"use strict";
(async () => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 640px)");
  const PAPER_WIDTH = 680; // pixels of a page of paper
  const PAPER_ZOOM = CSS.supports("zoom", "0.67") ? 0.67 : 1; // two figures then share a page
  const slots = [...document.querySelectorAll("[data-figure]")];
  let book = null;
  let printing = false;

  async function unpack(id) {
    const text = atob(document.getElementById(id).textContent);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  function layoutFor(slot, figure) {
    const look = printing || !dark.matches ? "light" : "dark";
    const layout = JSON.parse(JSON.stringify(figure.layout)); // plotly writes into what it is given
    layout.template = book.templates[look];
    layout.autosize = !printing;
    if (printing) layout.width = PAPER_WIDTH / PAPER_ZOOM;
    if (narrow.matches && !printing) {
      layout.font = { size: 11 };
      layout.margin = { ...layout.margin, l: 44, r: 6 };
      layout.legend = { ...layout.legend, font: { size: 10 } };
      layout.dragmode = false; // a finger on a figure moves the page
    }
    return layout;
  }

  function draw(slot) {
    const figure = book.figures[slot.dataset.figure];
    slot.style.zoom = printing ? PAPER_ZOOM : 1;
    const config = {
      responsive: true, displaylogo: false, displayModeBar: narrow.matches ? false : "hover",
      modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
      toImageButtonOptions: { format: "svg", filename: slot.dataset.figure },
    };
    return window.Plotly.react(slot, figure.data, layoutFor(slot, figure), config);
  }

  function say(text) {
    for (const slot of slots) slot.textContent = text;
  }

  for (const button of document.querySelectorAll("[data-copies]")) {
    button.addEventListener("click", async () => {
      const text = document.getElementById(button.dataset.copies);
      try {
        await navigator.clipboard.writeText(text.textContent);
        button.textContent = "Copied";
      } catch {
        window.getSelection().selectAllChildren(text);
        button.textContent = "Selected: press Ctrl-C";
      }
    });
  }

  if (!slots.length) return;
  if (!("DecompressionStream" in window)) {
    say("This browser is too old for the figures: it takes one of 2023 or newer. The tables say the same.");
    return;
  }
  const script = document.createElement("script");
  script.textContent = await unpack("plotly");
  document.head.append(script);
  book = JSON.parse(await unpack("figures"));
  for (const [place, slot] of slots.entries()) {
    await draw(slot);
    if (place % 4 === 1) await new Promise((later) => setTimeout(later, 0)); // show some, and stay alive meanwhile
  }
  document.documentElement.dataset.drawn = String(slots.length);
  const again = () => slots.forEach(draw);
  dark.addEventListener("change", again);
  narrow.addEventListener("change", again);
  window.addEventListener("beforeprint", () => { printing = true; again(); });
  window.addEventListener("afterprint", () => { printing = false; again(); });
})();
