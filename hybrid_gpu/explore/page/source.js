// Where answers come from: files beside the page, or the server that serves it.
"use strict";

const explorer = (() => {
  const waiting = new Map(); // of a folder: query number -> those who wait for its file
  const answers = new Map();
  let token = null;
  let live = false;

  class Refused extends Error {
    constructor(message, status) {
      super(message);
      this.status = status;
    }
  }

  // A file of the folder. Scripts, because browsers let pages of a disk read nothing else.
  function fromFile(number) {
    if (answers.has(number)) return Promise.resolve(answers.get(number));
    return new Promise((resolve, reject) => {
      const known = waiting.get(number);
      if (known) {
        known.push({ resolve, reject });
        return;
      }
      waiting.set(number, [{ resolve, reject }]);
      const script = document.createElement("script");
      script.src = `data/${number}.js`;
      script.onerror = () => settle(number, (one) =>
        one.reject(new Refused(`The file data/${number}.js of this page is missing.`)));
      script.onload = () => {
        script.remove();
        settle(number, (one) => one.reject(new Refused(`The file data/${number}.js is damaged.`)));
      };
      document.head.append(script);
    });
  }

  function settle(number, tell) {
    const all = waiting.get(number) || [];
    waiting.delete(number);
    all.forEach(tell);
  }

  async function fromServer(path, options = {}) {
    const headers = { ...(options.headers || {}) };
    if (token !== null) headers.Authorization = `Bearer ${token}`;
    let response;
    try {
      response = await fetch(`../api/${path}`, { ...options, headers });
    } catch (fault) {
      if (fault.name === "AbortError") throw fault;
      throw new Refused("The server does not answer. Is it still running?");
    }
    if (response.ok) return response;
    let said = {};
    try {
      said = await response.json();
    } catch {
      // Not one of our own answers: its number has to do.
    }
    const words = [said.error, said.hint].filter((one) => typeof one === "string" && one);
    throw new Refused(words.join(" ") || `The server refused (${response.status}).`, response.status);
  }

  return {
    Refused,
    get live() { return live; },
    set token(text) { token = text; },

    // Called by data/start.js.
    start(told) {
      live = told.live === true;
      explorer.begin(told);
    },

    // Called by data/0.js and its siblings.
    answered(number, answer) {
      answers.set(number, answer);
      settle(number, (one) => one.resolve(answer));
    },

    ask(question, signal) {
      if (!live) return fromFile(question.number);
      const body = JSON.stringify(question);
      const headers = { "Content-Type": "application/json" };
      return fromServer("answer", { method: "POST", body, headers, signal }).then((r) => r.json());
    },

    about: () => fromServer("start").then((response) => response.json()),

    find(words, signal) {
      return fromServer(`items?words=${encodeURIComponent(words)}`, { signal }).then((r) => r.json());
    },

    // An image cannot send a token: what needs one is fetched.
    showPicture(image, address) {
      if (!live || token === null) {
        image.src = address;
        return;
      }
      fromServer(address.replace(/^\.\.\/api\//, ""))
        .then((response) => response.blob())
        .then((blob) => {
          const made = URL.createObjectURL(blob);
          image.addEventListener("load", () => URL.revokeObjectURL(made), { once: true });
          image.src = made;
        })
        .catch(() => image.classList.add("missing"));
    },
  };
})();
