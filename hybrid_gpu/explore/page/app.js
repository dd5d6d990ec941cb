// What the page shows, and what keys, clicks and sliders do.
"use strict";

(() => {
  const { element, thumbnail, sign, name, said } = explorer.items;
  const at = (id) => document.getElementById(id);
  const PAUSE = 150; // milliseconds after the last keystroke or move of a slider

  let told = null; // what the page knew at the beginning
  let choices = []; // the queries that the list shows
  let asked = null; // the query: an entry of the list, or one of the user's own
  let answer = null;
  let chosen = null; // the item whose reason is shown
  let side = "diffused"; // the list that it was chosen in
  let running = null; // the question under way, which a newer one ends
  let finding = null;

  const later = (work) => {
    let timer = 0;
    return (...given) => {
      clearTimeout(timer);
      timer = setTimeout(() => work(...given), PAUSE);
    };
  };

  function complain(fault) {
    if (fault.name === "AbortError") return;
    if (fault.status === 401) {
      at("token").hidden = false;
      at("token-text").focus();
      return;
    }
    at("alert").textContent = fault.message;
    at("alert").hidden = false;
    at("status").textContent = "";
  }

  const content = () => at("alert").hidden = true;

  // ------------------------------------------------------------------------- the beginning

  explorer.begin = (start) => {
    if (!explorer.live) {
      show(start);
      return;
    }
    explorer.about().then(show).catch(complain);
  };

  function show(start) {
    told = start;
    document.title = told.title;
    at("title").textContent = told.title;
    at("facts").textContent = [...told.facts, `alpha ${told.alpha}`].join(" · ");
    explorer.items.pixelated = told.pixelated === true;
    if (told.attribution) {
      at("attribution").textContent = `Data: ${told.attribution}`;
      at("attribution").hidden = false;
    }
    if (explorer.live) openControls();
    list(numbered(), told.count);
    const wanted = choices.find((one) => address(one) === location.hash) || choices[told.first || 0];
    if (wanted) ask(wanted);
    else at("status").textContent = "There are no queries.";
  }

  function openControls() {
    for (const control of document.querySelectorAll(".live")) control.hidden = false;
    at("own").hidden = !told.vectors;
    at("own-text").hidden = !told.encodes;
    at("alpha").value = told.alpha;
    at("k").value = Math.min(20, told.n);
    at("k").max = Math.min(50, told.n);
    at("k").min = Math.min(5, told.n);
    at("method").replaceChildren(...told.methods.map((one) => element("option", { value: one }, one)));
    label();
  }

  function label() {
    at("alpha-value").textContent = Number(at("alpha").value).toFixed(2);
    at("k-value").textContent = at("k").value;
  }

  // ------------------------------------------------------------------------- the queries

  const numbered = () => told.queries.map((query, place) => ({ ...query, number: place }));

  function list(found, count) {
    choices = found;
    const total = count === undefined ? found.length : count;
    const more = total > found.length ? `${found.length} of ${total.toLocaleString("en-US")}` : `${total}`;
    at("found").textContent = total === 0 ? "Nothing contains that." : `${more} to choose from`;
    at("picker").classList.toggle("pictures", found.some((one) => one.picture));
    at("picker").replaceChildren(...found.map((one, place) => {
      const entry = element("li", { role: "option", tabindex: place ? -1 : 0, "aria-selected": "false", "aria-label": said(one), title: said(one) },
        thumbnail(one), one.picture ? null : name(one));
      entry.addEventListener("click", () => ask(one));
      return entry;
    }));
    mark();
  }

  function mark() {
    [...at("picker").children].forEach((entry, place) => {
      const same = asked !== null && choices[place].item === asked.item && choices[place].number === asked.number;
      entry.setAttribute("aria-selected", same ? "true" : "false");
    });
  }

  function find() {
    const words = at("find").value;
    if (explorer.live) {
      if (finding) finding.abort();
      finding = new AbortController();
      explorer.find(words, finding.signal).then((got) => list(got.items, got.count)).catch(complain);
      return;
    }
    const wanted = words.toLowerCase();
    list(numbered().filter((one) => `${one.label} ${one.text || ""}`.toLowerCase().includes(wanted)));
  }

  // ------------------------------------------------------------------------- a question

  function ask(query, keep = false) {
    asked = query;
    mark();
    if (running) running.abort();
    running = new AbortController();
    const mine = running;
    document.body.classList.add("busy");
    explorer.ask(question(query), mine.signal)
      .then((got) => {
        if (mine !== running) return;
        content();
        answer = got;
        const still = keep && answer.why[chosen];
        if (!still) chosen = first();
        history.replaceState(null, "", address(query) || location.pathname);
        render();
      })
      .catch((fault) => { if (mine === running) complain(fault); })
      .finally(() => { if (mine === running) document.body.classList.remove("busy"); });
  }

  // What leads back to a query: its number in a folder, its item on a server.
  function address(query) {
    const known = explorer.live ? query.item : query.number;
    return known === undefined || known === null ? "" : `#${known}`;
  }

  function question(query) {
    if (!explorer.live) return { number: query.number };
    const filter = at("filter").value;
    return {
      ...(query.vector ? { vector: query.vector, label: query.label } : query.words ? { words: query.words } : { item: query.item }),
      alpha: Number(at("alpha").value), k: Number(at("k").value), method: at("method").value,
      ...(filter ? { contains: filter } : {}),
    };
  }

  // What moved up most among the first: that is what the page is for.
  function first() {
    let best = null, most = -Infinity;
    answer.diffused.slice(0, 8).forEach(([item], place) => {
      const why = answer.why[item];
      const up = why && why.plainRank !== null ? why.plainRank - place - 1 : -1;
      if (up > most) [best, most] = [item, up];
    });
    side = "diffused";
    return best === null && answer.plain.length ? answer.plain[0][0] : best;
  }

  // ------------------------------------------------------------------------- the rankings

  function visible(rows) {
    const wanted = at("filter").value.toLowerCase();
    const kept = rows.map(([item, score], place) => ({ item, score, rank: place + 1 }));
    if (explorer.live || !wanted) return kept;
    return kept.filter(({ item }) => said(answer.items[item]).toLowerCase().includes(wanted));
  }

  function render() {
    const about = answer.query;
    const shown = thumbnail(about, "large") || (answer.query.item === null ? sign("?", "large") : null);
    at("asked-thumb").replaceChildren(...(shown ? [shown] : []));
    at("asked-title").textContent = about.label;
    at("asked-text").textContent = about.text || "";
    for (const which of ["plain", "diffused"]) fill(which);
    const up = answer.diffused.filter(([item], place) => moved(item, place + 1, "diffused") > 0).length;
    const { alpha, method } = answer.settings;
    at("status").textContent = [
      `${up} of the first ${answer.diffused.length} moved up by diffusion (${method}, alpha ${alpha}).`,
      ...answer.notes.map((note) => `${note}.`),
    ].join(" ");
    explain();
  }

  function fill(which) {
    const rows = visible(answer[which]);
    const most = Math.max(...answer[which].map(([, score]) => score), 1e-12);
    at(which).replaceChildren(...rows.map((row) => line(row, which, most)));
    const empty = at(`${which}-empty`);
    empty.hidden = rows.length > 0;
    empty.textContent = at("filter").value ? "No result contains that."
      : which === "plain" ? "This index knows no similarities: it was built without descriptors." : "Nothing was found.";
    enter(which);
  }

  // How far an item moved by diffusion; NaN if it has no place in one of the rankings.
  function moved(item, rank, which) {
    const why = answer.why[item];
    const [before, after] = which === "plain" ? [rank, why.rank] : [why.plainRank, rank];
    return before === null || after === null ? NaN : before - after;
  }

  function line({ item, score, rank }, which, most) {
    const about = answer.items[item];
    const step = moved(item, rank, which);
    const up = step > 0, same = step === 0;
    const words = Number.isNaN(step) ? "not ranked by similarity" : same ? "same place" : `${up ? "up" : "down"} ${Math.abs(step)}`;
    const badge = element("span", { class: `badge ${up ? "up" : same ? "same" : "down"}`, title: `${words} by diffusion` },
      Number.isNaN(step) ? "new" : same ? "=" : `${up ? "▲" : "▼"} ${Math.abs(step).toLocaleString("en-US")}`);
    const bar = element("span", { class: "bar" });
    bar.style.setProperty("--part", Math.max(0, score / most).toFixed(3));
    const entry = element("li", {
      role: "option", tabindex: -1, "aria-selected": item === chosen ? "true" : "false",
      "aria-label": `${rank}: ${said(about)}; ${words}`,
    }, element("span", { class: "rank" }, String(rank)), thumbnail(about), name(about), badge, bar);
    entry.dataset.item = item;
    entry.addEventListener("click", () => { choose(item, which); nearby(); });
    return entry;
  }

  // One entry of each list is where Tab goes.
  function enter(which) {
    const entries = [...at(which).children];
    const goal = entries.find((entry) => Number(entry.dataset.item) === chosen) || entries[0];
    entries.forEach((entry) => { entry.tabIndex = entry === goal ? 0 : -1; });
  }

  function choose(item, which) {
    chosen = item;
    side = which || side;
    for (const list of ["plain", "diffused"]) {
      for (const entry of at(list).children) {
        entry.setAttribute("aria-selected", Number(entry.dataset.item) === chosen ? "true" : "false");
      }
      enter(list);
    }
    explain();
  }

  // On a phone, the reason is below: a tap leads there.
  function nearby() {
    const box = at("why").getBoundingClientRect();
    if (box.top > window.innerHeight * 0.8) at("why").scrollIntoView({ behavior: "smooth", block: "start" });
  }

  // ------------------------------------------------------------------------- the reason

  function explain() {
    const why = chosen === null ? undefined : answer.why[chosen];
    at("graph").hidden = !why;
    at("hit-key").hidden = answer.query.item !== null;
    at("number-key").hidden = Object.values(answer.items).some((one) => one.picture);
    if (!why) {
      at("reason").replaceChildren(element("p", { class: "empty" }, "There is no result to explain."));
      at("drawing").replaceChildren();
      at("more").replaceChildren();
      return;
    }
    const reason = explorer.reason(answer, chosen);
    at("reason").replaceChildren(...reason.first(searchFromHere()));
    at("more").replaceChildren(...reason.more());
    const path = why.paths.length ? why.paths[0].items : [];
    at("drawing").replaceChildren(explorer.drawing.drawn(answer, chosen, path, (item) => choose(item)));
  }

  // The item as the next query, where that can be answered.
  function next() {
    if (chosen === answer.query.item) return null;
    if (explorer.live) return { ...answer.items[chosen], item: chosen };
    return numbered().find((one) => one.item === chosen) || null;
  }

  function searchFromHere() {
    const query = next();
    if (query === null) return null;
    const button = element("button", { type: "button", class: "plain-button" }, "Search from here");
    button.addEventListener("click", () => { ask(query); window.scrollTo({ top: 0, behavior: "smooth" }); });
    return button;
  }

  // ------------------------------------------------------------------------- keys

  function steer(event, entries, goTo) {
    const here = entries.indexOf(document.activeElement);
    const moves = { ArrowDown: here + 1, ArrowUp: here - 1, Home: 0, End: entries.length - 1 };
    if (here < 0 || !(event.key in moves)) return;
    event.preventDefault();
    const goal = entries[Math.min(entries.length - 1, Math.max(0, moves[event.key]))];
    entries.forEach((entry) => { entry.tabIndex = entry === goal ? 0 : -1; });
    goal.focus();
    goTo(goal);
  }

  at("picker").addEventListener("keydown", (event) => {
    const entries = [...at("picker").children];
    const here = entries.indexOf(document.activeElement);
    if (here >= 0 && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      ask(choices[here]);
      return;
    }
    const wide = at("picker").classList.contains("pictures");
    const also = wide ? { ArrowRight: "ArrowDown", ArrowLeft: "ArrowUp" }[event.key] : undefined;
    steer(also ? { key: also, preventDefault: () => event.preventDefault() } : event, entries, () => {});
  });

  for (const which of ["plain", "diffused"]) {
    at(which).addEventListener("keydown", (event) => {
      const entries = [...at(which).children];
      if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
        const other = [...at(event.key === "ArrowLeft" ? "plain" : "diffused").children];
        const goal = other[Math.min(other.length - 1, entries.indexOf(document.activeElement))];
        if (!goal) return;
        event.preventDefault();
        goal.focus();
        choose(Number(goal.dataset.item), event.key === "ArrowLeft" ? "plain" : "diffused");
        return;
      }
      steer(event, entries, (goal) => choose(Number(goal.dataset.item), which));
    });
  }

  // ------------------------------------------------------------------------- settings

  const again = later(() => { if (asked) ask(asked, true); });
  for (const id of ["alpha", "k"]) at(id).addEventListener("input", () => { label(); again(); });
  at("method").addEventListener("change", again);
  at("find").addEventListener("input", later(find));
  at("filter").addEventListener("input", later(() => {
    if (explorer.live) ask(asked, true);
    else if (answer) { fill("plain"); fill("diffused"); }
  }));
  at("controls").addEventListener("submit", (event) => event.preventDefault());
  at("token").addEventListener("submit", (event) => {
    event.preventDefault();
    explorer.token = at("token-text").value;
    at("token").hidden = true;
    explorer.about().then(show).catch(complain);
  });

  // ------------------------------------------------------------------------- vectors of the user's own

  let rows = null;

  async function take(file) {
    try {
      rows = explorer.readNpy(await file.arrayBuffer());
      at("rows").hidden = rows.count < 2;
      at("rows-of").textContent = `of ${rows.count} in ${file.name}`.slice(0, 80);
      at("row").max = rows.count - 1;
      at("row").value = 0;
      askRow(file.name);
    } catch (fault) {
      complain(fault);
    }
  }

  function askRow(title) {
    const row = Math.min(rows.count - 1, Math.max(0, Math.round(Number(at("row").value)) || 0));
    ask({ vector: rows.row(row), label: `row ${row} of ${title}`, title });
  }

  at("file").addEventListener("change", () => { if (at("file").files.length) take(at("file").files[0]); });
  at("row").addEventListener("input", later(() => { if (rows && asked.title) askRow(asked.title); }));
  at("own-text").addEventListener("submit", (event) => {
    event.preventDefault();
    if (at("words").value) ask({ words: at("words").value, label: at("words").value });
  });
  for (const kind of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(kind, (event) => {
      if (!explorer.live || !told || !told.vectors) return;
      event.preventDefault();
      at("drop").classList.toggle("over", kind === "dragover");
      if (kind === "drop" && event.dataTransfer.files.length) take(event.dataTransfer.files[0]);
    });
  }
})();
