// The page as a whole: light and dark, claims by outcome, and everything that is drawn.

function setUpTheme() {
  const button = document.getElementById("theme");
  const preferred = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : preferred.matches);
  const label = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    label();
  });
  preferred.addEventListener("change", label);
  label();
}

function setUpFilter() {
  const buttons = [...document.querySelectorAll("[data-filter]")];
  const claims = [...document.querySelectorAll("[data-outcome]")];
  for (const button of buttons) {
    button.addEventListener("click", () => {
      const wanted = button.dataset.filter;
      for (const each of buttons) each.setAttribute("aria-pressed", each === button);
      for (const claim of claims) claim.hidden = wanted !== "all" && claim.dataset.outcome !== wanted;
      for (const group of document.querySelectorAll(".claim, .group")) {
        group.hidden = !group.querySelector("[data-outcome]:not([hidden])");
      }
      document.getElementById("shown").textContent = `Claims shown: ${button.textContent}`;
    });
  }
}

/** On paper nothing can be opened: settings are printed, whether they were open or not. */
function setUpPrint() {
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll(".repeat details:not([open])")];
    for (const details of opened) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of opened) details.open = false;
  });
}

document.documentElement.classList.add("scripted");
setUpTheme();
setUpFilter();
setUpPrint();
for (const [selector, Kind] of [[".figure .curves", Curves], [".figure .heat", HeatMap], [".compare", Comparison]]) {
  for (const element of document.querySelectorAll(selector)) new Kind(element);
}
