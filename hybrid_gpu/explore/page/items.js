// How items look. Keys and texts become text nodes and nothing else, whatever they hold.
"use strict";

explorer.items = (() => {
  let pixelated = false;

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === true) made.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  }

  function thumbnail(about, kind = "") {
    if (about && about.picture) {
      const image = element("img", { class: `thumb ${kind}`, alt: "", loading: "lazy", decoding: "async" });
      if (pixelated) image.classList.add("pixelated");
      explorer.showPicture(image, about.picture);
      return image;
    }
    return null;
  }

  // A sign for what has no picture: a query vector, or an item of keys and texts.
  function sign(text, kind = "") {
    return element("span", { class: `thumb sign ${kind}`, "aria-hidden": "true" }, text);
  }

  function name(about) {
    const parts = [element("span", { class: "label", dir: "auto" }, about.label)];
    if (about.text !== undefined) parts.push(element("span", { class: "text", dir: "auto" }, about.text));
    return element("span", { class: about.text === undefined ? "name" : "name with-text" }, ...parts);
  }

  const said = (about) => [about.text, about.label].filter(Boolean).join(", ").slice(0, 200);
  const percent = (share) => {
    const value = 100 * share;
    if (value > 0 && value < 0.1) return "under 0.1 %";
    return `${value.toFixed(Math.abs(value) < 9.95 ? 1 : 0)} %`;
  };
  const number = (value) => value.toLocaleString("en-US", { maximumSignificantDigits: 3 });

  return {
    element, thumbnail, sign, name, said, percent, number,
    set pixelated(value) { pixelated = value; },
    get pixelated() { return pixelated; },
  };
})();
