// The neighborhood as a drawing; its places are computed where the answer is.
"use strict";

explorer.drawing = (() => {
  const SPACE = "http://www.w3.org/2000/svg";
  const WIDTH = 1000, HEIGHT = 640, RADIUS = 34;

  function shape(tag, attributes, ...children) {
    const made = document.createElementNS(SPACE, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function steps(path) {
    const found = new Set();
    for (let i = 1; i < path.length; i++) {
      found.add(`${path[i - 1]} ${path[i]}`);
      found.add(`${path[i]} ${path[i - 1]}`);
    }
    return found;
  }

  function lines(graph, path) {
    const lit = steps(path);
    const heaviest = Math.max(...graph.edges.map((edge) => edge[2]), 1e-9);
    const drawn = graph.edges.map(([from, to, weight]) => {
      const [a, x1, y1] = graph.nodes[from];
      const [b, x2, y2] = graph.nodes[to];
      const asked = weight === 0;
      const on = lit.has(`${a} ${b}`) || (asked && [a, b].includes(path[0]));
      const kind = `edge${on ? " on" : ""}${asked ? " asked" : ""}`;
      const width = asked ? (on ? 5 : 3) : on ? 7 : 1.2 + 3.4 * (weight / heaviest);
      return { on, line: shape("line", { x1, y1, x2, y2, class: kind, "stroke-width": width.toFixed(1) }) };
    });
    // The path last: nothing covers it.
    return drawn.sort((one, other) => one.on - other.on).map((one) => one.line);
  }

  function node([item, x, y], answer, role, chosen, choose) {
    const about = item < 0 ? answer.query : answer.items[item];
    const group = shape("g", { class: `node ${role}`, transform: `translate(${x} ${y})` });
    const title = shape("title", {});
    title.textContent = item < 0 ? "the query" : explorer.items.said(about);
    const round = shape("circle", { r: RADIUS, class: about.picture ? "disc paper" : "disc" });
    group.append(title, round);
    if (about.picture) {
      const side = RADIUS * 1.36;
      const image = shape("image", { x: -side / 2, y: -side / 2, width: side, height: side, preserveAspectRatio: "xMidYMid slice" });
      if (explorer.items.pixelated) image.setAttribute("class", "pixelated");
      explorer.showPicture({
        set src(address) { image.setAttribute("href", address); },
        addEventListener: (...more) => image.addEventListener(...more),
        classList: image.classList,
      }, about.picture);
      group.append(image);
    } else {
      const mark = shape("text", { class: item < 0 ? "mark" : "mark small", "text-anchor": "middle", dy: "0.36em" });
      // Its place: of a key, only some letters would fit, and those of many are the same.
      const place = answer.diffused.findIndex(([one]) => one === item);
      mark.textContent = item < 0 ? "?" : place < 0 ? "" : place + 1;
      group.append(mark);
    }
    if (item === chosen) group.append(shape("circle", { r: RADIUS + 7, class: "ring" }));
    if (choose) {
      group.classList.add("open");
      group.addEventListener("click", choose);
    }
    return group;
  }

  // The whole drawing, for an answer, the chosen item and the path to it.
  function drawn(answer, chosen, path, choose) {
    const hits = new Set();
    for (const why of Object.values(answer.why)) for (const [item, , share] of why.hits) if (share > 0) hits.add(item);
    const graph = answer.graph;
    const on = new Set(path);
    const whole = shape("svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img",
      "aria-label": `A drawing of ${graph.nodes.length} items around the query and ${graph.edges.length} edges among them`,
    });
    whole.append(...lines(graph, path));
    for (const one of graph.nodes) {
      const item = one[0];
      const first = item < 0 || item === answer.query.item;
      const role = [first ? "query" : hits.has(item) ? "hit" : "", on.has(item) ? "on" : ""].join(" ");
      const reason = answer.why[item];
      whole.append(node(one, answer, role, chosen, reason ? () => choose(item) : null));
    }
    return whole;
  }

  return { drawn };
})();
