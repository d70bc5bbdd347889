// The theme's own elements get names and roles that screen readers and keyboards need.
const MENDS = [
  [".md-search[role=dialog]", { "aria-label": "Search" }],
  [".md-typeset__scrollwrap, .md-typeset pre > code, .formula", { tabindex: "0" }],
];
// A long name in a text may break after a dot or a bracket, so that it fits a phone.
function breakable(code) {
  code.dataset.breakable = "";
  const texts = document.createTreeWalker(code, NodeFilter.SHOW_TEXT), long = [];
  while (texts.nextNode()) if (/\S{28}/.test(texts.currentNode.data)) long.push(texts.currentNode);
  for (const text of long) {
    const parts = text.data.split(/(?<=[.([=/])(?=\w|["'])/);
    text.replaceWith(...parts.flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part])));
  }
}
function mend() {
  document.querySelectorAll(".md-typeset :is(p, li) > code:not([data-breakable])").forEach(breakable);
  for (const [selector, attributes] of MENDS)
    for (const element of document.querySelectorAll(selector))
      for (const [name, value] of Object.entries(attributes))
        if (element.getAttribute(name) !== value) element.setAttribute(name, value);
  // lists of pages and headings, each with a name of its own
  document.querySelectorAll(".md-nav .md-nav:not([data-named])").forEach(list => {
    const label = document.getElementById(list.getAttribute("aria-labelledby"));
    const name = (label ? label.innerText : list.getAttribute("aria-label") || "").trim();
    list.dataset.named = `${document.querySelectorAll("[data-named]").length + 1}`;
    list.setAttribute("aria-label", `${name || "Pages"}, list ${list.dataset.named}`);
    list.removeAttribute("aria-labelledby");
  });
  document.querySelectorAll(".md-code__nav:not([aria-label])").forEach(buttons => {
    const all = [...document.querySelectorAll("pre")];
    const number = all.indexOf(buttons.closest("pre")) + 1;
    buttons.setAttribute("aria-label", `Code ${number || buttons.parentNode.id}`);
  });
  for (const empty of document.querySelectorAll(".md-typeset th:empty"))
    empty.replaceWith(document.createElement("td"));
}
mend();
new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });
