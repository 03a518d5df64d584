// What is wider than its place scrolls; a keyboard reaches it only if it can be focused, and then it needs a name.
const kinds = { ".highlight pre": "Code", ".table-wrapper": "Table", ".formula": "Formula", ".cell_output": "Output" };

function reach() {
  for (const [selector, name] of Object.entries(kinds))
    for (const place of document.querySelectorAll(selector)) {
      const scrolls = place.scrollWidth > place.clientWidth;
      place.toggleAttribute("tabindex", scrolls);
      if (!scrolls) {
        place.removeAttribute("role");
        place.removeAttribute("aria-label");
        continue;
      }
      place.tabIndex = 0;
      place.setAttribute("role", "region");
      place.setAttribute("aria-label", `${name}, scrolls`);
    }
}

addEventListener("load", reach);
addEventListener("resize", reach);
