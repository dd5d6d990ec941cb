// Why an item is where it is, in words and pictures.
"use strict";

explorer.reason = (answer, chosen) => {
  const { element, thumbnail, sign, name, said, percent, number } = explorer.items;
  const why = answer.why[chosen];

  // What comes before the drawing: the item, its places, and the path.
  function first(button) {
    const about = answer.items[chosen];
    const unreached = "Diffusion does not reach this item: no edges lead to it from a hit. It stands behind all that are reached, by its similarity.";
    return [
      element("div", { class: "subject" }, thumbnail(about, "large"), element("div", {}, name(about), places(), button)),
      ...(why.reached ? reached() : [element("p", {}, unreached)]),
      ...(why.reached ? why.notes.map((note) => element("p", { class: "quiet small" }, `Note: ${note}.`)) : []),
    ];
  }

  // What comes behind it.
  function more() {
    if (!why.reached || why.hits.length < 2) return [];
    return [element("h3", {}, "What each hit gave"), shares()];
  }

  function places() {
    const plain = why.plainRank === null ? "no place" : `place ${why.plainRank.toLocaleString("en-US")}`;
    const rank = why.rank === null ? "no place" : `place ${why.rank.toLocaleString("en-US")}`;
    const likeness = why.similarity === null ? "" : ` (similarity ${number(why.similarity)})`;
    return element("p", { class: "places" }, "By similarity ", element("strong", {}, plain), `${likeness}, after diffusion `, element("strong", {}, rank), ".");
  }

  function reached() {
    const parts = [];
    const best = why.paths[0];
    if (best) {
      parts.push(element("h3", {}, "The path that carried most"), chain(best));
      const rest = best.items.length === 1
        ? `It is a hit itself, which gave ${percent(best.share)} of its score. The rest came from others, and back to it along its neighbors.`
        : `This path alone carried ${percent(best.share)} of the score, more than any other. The rest came along other walks.`;
      parts.push(element("p", {}, rest));
    }
    if (why.paths.length > 1) {
      const others = why.paths.slice(1).map((path) => element("div", { class: "other" }, chain(path), element("span", { class: "quiet small" }, percent(path.share))));
      parts.push(element("details", {}, element("summary", {}, "The best paths from other hits"), ...others));
    }
    if (!answer.settings.exact) parts.push(element("p", { class: "quiet small" }, `The list is by ${answer.settings.method}; places, paths and shares here are those of diffusion itself.`));
    return parts;
  }

  function chain(path) {
    const pictures = path.items.some((item) => answer.items[item].picture);
    const made = element("ol", { class: pictures ? "chain" : "chain lines" });
    const start = answer.query.item === null;
    if (start) made.append(element("li", { class: "start" }, thumbnail(answer.query, "query") || sign("", "query"), element("span", { class: "label" }, "query")));
    path.items.forEach((item, place) => {
      const about = answer.items[item];
      const weight = place ? path.weights[place - 1] : null;
      if (place || start) {
        const what = place ? `edge of weight ${weight}` : "a hit of the query";
        made.append(element("li", { class: "step", "aria-label": what, title: what }, element("span", { class: "arrow", "aria-hidden": "true" }), element("span", { class: "small quiet" }, place ? number(weight) : "hit")));
      }
      const kind = item === answer.query.item ? "query" : place === 0 ? "hit" : item === chosen ? "goal" : "";
      made.append(element("li", { "aria-label": said(about), title: said(about) }, thumbnail(about, kind) || sign("", kind), element("span", { class: "label", dir: "auto" }, about.text || about.label)));
    });
    return made;
  }

  function shares() {
    const made = element("ul", { class: "shares" });
    const sorted = [...why.hits].sort((one, other) => other[2] - one[2]);
    for (const [item, likeness, share] of sorted) {
      const bar = element("span", { class: "bar" });
      bar.style.setProperty("--part", Math.min(1, Math.max(0, share)).toFixed(3));
      const about = answer.items[item];
      made.append(element("li", {}, thumbnail(about), name(about), element("span", { class: "share", title: `similarity to the query ${likeness}` }, percent(share)), bar));
    }
    return made;
  }

  return { first, more };
};
