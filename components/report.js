"use strict";
(() => {
  const root = document.documentElement;
  const find = (id) => document.getElementById(id);

  // Stored choices are a comfort: a browser that forbids storage for files still switches.
  const stored = {
    get: () => { try { return localStorage.getItem("headrace-theme"); } catch { return null; } },
    set: (theme) => { try { localStorage.setItem("headrace-theme", theme); } catch { /* as above */ } },
  };
  const toggle = find("theme");
  const isDark = () =>
    (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const label = () => { toggle.textContent = isDark() ? "Light colours" : "Dark colours"; };
  if (["light", "dark"].includes(stored.get())) root.dataset.theme = stored.get();
  toggle.hidden = false;
  toggle.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    stored.set(root.dataset.theme);
    label();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", label);
  label();

  const openTarget = () => {
    const target = location.hash.length > 1 ? find(location.hash.slice(1)) : null;
    if (target?.tagName !== "DETAILS") return;
    target.hidden = false;
    target.open = true;
    target.querySelector("summary").focus();
    target.scrollIntoView();
  };
  addEventListener("hashchange", openTarget);
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href^='#column-']");
    if (link && link.hash === location.hash) openTarget();
  });
  openTarget();

  const list = find("column-list");
  if (!list) return;
  const columns = [...list.children];
  const [search, sort, only] = ["search", "sort", "only"].map(find);
  const whole = find("count").textContent;

  const filter = () => {
    const wanted = search.value.trim().toLowerCase();
    let shown = 0;
    for (const column of columns) {
      const fits = column.dataset.name.includes(wanted) && (!only.checked || column.dataset.problem !== "0");
      column.hidden = !fits;
      shown += fits;
    }
    find("none").hidden = shown > 0;
    find("count").textContent = shown === columns.length ? whole : `${shown} of ${whole}`;
  };
  const order = () => {
    const by = sort.value;
    const number = (column, key) => Number(column.dataset[key]);
    columns.sort((left, right) => {
      const names = left.dataset.name.localeCompare(right.dataset.name, undefined, { numeric: true });
      if (by === "name") return names;
      if (by === "file") return number(left, "file") - number(right, "file");
      return number(right, by) - number(left, by) || names;
    });
    list.append(...columns);
  };
  const openAll = (open) => {
    for (const column of columns) if (!column.hidden) column.open = open;
  };

  search.addEventListener("input", filter);
  search.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { search.value = ""; filter(); }
  });
  only.addEventListener("change", filter);
  sort.addEventListener("change", order);
  find("open-all").addEventListener("click", () => openAll(true));
  find("close-all").addEventListener("click", () => openAll(false));
  find("controls").hidden = false;
  // A browser keeps what was typed over a reload.
  filter();
  order();
})();
