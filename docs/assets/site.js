// The theme's own elements get names and roles that screen readers and keyboards need.
const MENDS = [
  [".md-search[role=dialog]", { "aria-label": "Search" }],
  [".md-typeset__scrollwrap, .md-typeset pre > code, .formula", { tabindex: "0" }],
];
function mend() {
  for (const [selector, attributes] of MENDS)
    for (const element of document.querySelectorAll(selector))
      for (const [name, value] of Object.entries(attributes))
        if (element.getAttribute(name) !== value) element.setAttribute(name, value);
  document.querySelectorAll(".md-nav .md-nav[aria-labelledby]").forEach((list, i) => {
    const label = document.getElementById(list.getAttribute("aria-labelledby"));
    list.setAttribute("aria-label", `${label ? label.innerText.trim() : "Pages"}, part ${i + 1}`);
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
