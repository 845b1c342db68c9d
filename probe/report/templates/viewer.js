"use strict";
// The sentence viewer: reads the page's own data blocks, draws with textContent only, asks nobody for anything.
(() => {
  const shared = JSON.parse(document.getElementById("shared").textContent);
  const darkScheme = window.matchMedia("(prefers-color-scheme: dark)");
  const MEAN = -1; // stands for "all layers" or "all heads"
  const LISTED = 40;
  let printing = false;

  const say = (key, values = {}) => shared.strings[key].replace(/\{(\w+)\}/g, (_, name) => String(values[name]));
  const colours = () => (darkScheme.matches && !printing ? shared.colours.dark : shared.colours.light);
  const visible = (label) => label.replace(/\r?\n|\r/g, "↓").replace(/\t/g, "→");

  function element(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function number(value) {
    if (value === 0) return "0";
    if (value < 0.0005) return "<0.001";
    return value.toFixed(value < 0.0995 ? 3 : 2);
  }

  function colourOf(value, high) {
    const ramp = colours();
    return ramp[Math.min(ramp.length - 1, Math.floor((value / high) * ramp.length))];
  }

  // Black or white, whichever stands out more (WCAG relative luminance).
  function inkOn(hex) {
    const [red, green, blue] = [1, 3, 5].map((at) => {
      const part = parseInt(hex.slice(at, at + 2), 16) / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000000" : "#ffffff";
  }

  function weightsOf(item) {
    if (!item.decoded) {
      const bytes = atob(item.weights);
      item.decoded = Float64Array.from(bytes, (byte) => (byte.charCodeAt(0) / 255) ** 2); // [layer, head, token]
    }
    return item.decoded;
  }

  // The target's row: [token]; the mean where layer or head is MEAN; renormalised over `kept` tokens.
  function rowOf(data, item, { layer, head, bare }) {
    const tokens = item.labels.length;
    const weights = weightsOf(item);
    const layers = layer === MEAN ? data.layers.map((_, at) => at) : [layer];
    const heads = head === MEAN ? Array.from({ length: data.heads }, (_, at) => at) : [head];
    const row = new Float64Array(tokens);
    for (const one of layers)
      for (const other of heads) {
        const start = (one * data.heads + other) * tokens;
        for (let token = 0; token < tokens; token++) row[token] += weights[start + token];
      }
    const count = layers.length * heads.length;
    const out = bare ? leftOut(item) : new Set();
    let total = 0;
    for (let token = 0; token < tokens; token++) {
      row[token] = out.has(token) ? 0 : row[token] / count;
      total += row[token];
    }
    if (bare && total > 0) for (let token = 0; token < tokens; token++) row[token] /= total;
    return row;
  }

  function leftOut(item) {
    const out = new Set(item.special);
    if (item.sink >= 0 && !item.target.includes(item.sink)) out.add(item.sink);
    return out;
  }

  // What a cell of the grid shows: mass on the cue or, without one, the largest weight on another word.
  function massOf(item, row) {
    if (item.cues.length) return Math.min(1, item.cues.reduce((sum, token) => sum + row[token], 0));
    const others = item.labels.map((_, token) => token).filter((token) => !item.target.includes(token) && !item.special.includes(token));
    return others.reduce((most, token) => Math.max(most, row[token]), 0);
  }

  function startViewer(root) {
    const data = JSON.parse(document.getElementById("data-" + root.dataset.viewer).textContent);
    const find = (name) => root.querySelector("." + name);
    const state = { item: data.cases[0], layer: MEAN, head: MEAN, bare: false, fixed: false };
    const headName = (head) => (head === MEAN ? say("mean") : data.head_names[head]);
    const layerName = (layer) => (layer === MEAN ? say("mean") : data.layers[layer]);
    const placeName = () => say("where", { layer: layerName(state.layer), head: headName(state.head) });
    const cells = new Map();
    const keyOf = (layer, head) => layer + ":" + head;

    function select(layer, head) {
      state.layer = layer;
      state.head = head;
      draw();
    }

    // ---- choosing a sentence
    const list = find("cases");
    const wordsOf = (item) => item.text || item.labels.filter((_, token) => !item.special.includes(token)).join("");
    const options = data.cases.map((item, at) => {
      const option = element("li");
      option.id = `case-${root.dataset.viewer}-${at}`;
      option.setAttribute("role", "option");
      const words = element("bdi", "words", wordsOf(item));
      words.dir = item.dir;
      option.append(words, element("bdi", "tag", item.sense || item.id));
      option.addEventListener("click", () => choose(at));
      list.append(option);
      return option;
    });
    const haystacks = data.cases.map((item) => [wordsOf(item), item.sense, item.id, item.note].join("\n").toLowerCase());

    function choose(at) {
      state.item = data.cases[at];
      draw();
      const option = options[at];
      const above = option.offsetTop - list.scrollTop;
      if (above < 0 || above + option.offsetHeight > list.clientHeight) list.scrollTop = option.offsetTop - list.clientHeight / 3;
    }

    function filter() {
      const wanted = find("filter").value.trim().toLowerCase();
      let shown = 0;
      options.forEach((option, at) => {
        option.hidden = !haystacks[at].includes(wanted);
        shown += option.hidden ? 0 : 1;
      });
      find("count").textContent = shown ? say("count", { shown, total: options.length }) : say("nothing");
    }

    list.addEventListener("keydown", (event) => {
      const shown = options.map((option, at) => (option.hidden ? -1 : at)).filter((at) => at >= 0);
      const here = shown.indexOf(data.cases.indexOf(state.item));
      const next = { ArrowDown: here + 1, ArrowUp: here < 0 ? 0 : here - 1, Home: 0, End: shown.length - 1 }[event.key];
      if (next === undefined || !shown.length) return;
      event.preventDefault();
      choose(shown[Math.max(0, Math.min(shown.length - 1, next))]);
    });
    find("filter").addEventListener("input", filter);

    // ---- choosing layer and head
    function fillSelect(name, count, nameOf) {
      const select = find(name);
      for (let at = MEAN; at < count; at++) select.append(new Option(nameOf(at), String(at)));
      return select;
    }
    const layerSelect = fillSelect("layer", data.layers.length, layerName);
    const headSelect = fillSelect("head", data.heads, headName);
    layerSelect.addEventListener("change", () => select(Number(layerSelect.value), state.head));
    headSelect.addEventListener("change", () => select(state.layer, Number(headSelect.value)));
    for (const name of ["bare", "fixed"])
      find(name).addEventListener("change", (event) => {
        state[name] = event.target.checked;
        draw();
      });

    // The means stand last, as margins of the table.
    const layersDown = [...data.layers.keys(), MEAN];
    const headsAcross = [...Array(data.heads).keys(), MEAN];

    function buildGrid() {
      const grid = find("grid");
      grid.style.gridTemplateColumns = `auto repeat(${data.heads + 1}, minmax(0, 1fr))`;
      grid.style.maxWidth = `${Math.min(27, 4 + 2.1 * (data.heads + 1))}rem`;
      const headStep = Math.ceil(data.heads / 16);
      const layerStep = Math.ceil(data.layers.length / 32);
      const top = element("div");
      top.setAttribute("role", "row");
      top.append(gridName("columnheader", ""));
      for (const head of headsAcross)
        top.append(gridName("columnheader", head === MEAN ? say("mean_short") : head % headStep ? "" : data.head_names[head]));
      grid.append(top);
      for (const layer of layersDown) {
        const line = element("div");
        line.setAttribute("role", "row");
        line.append(gridName("rowheader", layer === MEAN ? say("mean_short") : layer % layerStep ? "" : data.layers[layer]));
        for (const head of headsAcross) line.append(buildCell(layer, head));
        grid.append(line);
      }
      grid.addEventListener("keydown", moveInGrid);
    }

    function gridName(role, text) {
      const made = element("span", "name", text);
      made.setAttribute("role", role);
      return made;
    }

    function buildCell(layer, head) {
      const cell = element("div", "cell" + (layer === MEAN ? " mean-row" : "") + (head === MEAN ? " mean-column" : ""));
      cell.setAttribute("role", "gridcell");
      cell.addEventListener("click", () => {
        select(layer, head);
        cell.focus({ preventScroll: true });
      });
      cells.set(keyOf(layer, head), cell);
      return cell;
    }

    function moveInGrid(event) {
      let row = layersDown.indexOf(state.layer);
      let column = headsAcross.indexOf(state.head);
      if (event.key === "ArrowDown") row++;
      else if (event.key === "ArrowUp") row--;
      else if (event.key === "ArrowRight") column++;
      else if (event.key === "ArrowLeft") column--;
      else if (event.key === "Home") column = 0;
      else if (event.key === "End") column = headsAcross.length - 1;
      else return;
      event.preventDefault();
      const layer = layersDown[Math.max(0, Math.min(layersDown.length - 1, row))];
      const head = headsAcross[Math.max(0, Math.min(headsAcross.length - 1, column))];
      select(layer, head);
      cells.get(keyOf(layer, head)).focus({ preventScroll: false });
    }

    // ---- drawing
    function draw() {
      const row = rowOf(data, state.item, state);
      drawSentence(row);
      drawReading(row);
      drawGrid();
      const at = data.cases.indexOf(state.item);
      options.forEach((option, place) => option.setAttribute("aria-selected", String(place === at)));
      list.setAttribute("aria-activedescendant", options[at].id);
      layerSelect.value = String(state.layer);
      headSelect.value = String(state.head);
      find("case-id").textContent = state.item.id;
      find("sense").textContent = state.item.sense;
      find("note").textContent = state.item.note;
      sayWhere(row);
    }

    function sayWhere(row) {
      const nothing = state.bare && row.every((weight) => weight === 0);
      const mass = say(state.item.cues.length ? "on_cue" : "on_other", { value: number(massOf(state.item, row)) });
      find("readout").textContent = placeName() + " · " + (nothing ? say("empty") : mass);
    }

    function kindsOf(token) {
      const item = state.item;
      return [
        item.target.includes(token) ? " target" : "",
        item.cues.includes(token) ? " cue" : "",
        item.special.includes(token) ? " special" : "",
      ].join("");
    }

    function drawSentence(row) {
      const item = state.item;
      const sentence = find("sentence");
      const high = state.fixed ? 1 : Math.max(...row) || 1;
      const out = state.bare ? leftOut(item) : new Set();
      sentence.dir = item.dir;
      sentence.replaceChildren(
        ...item.labels.map((label, token) => {
          const made = element("span", "token" + kindsOf(token), visible(label));
          const words = out.has(token) ? say("left_out") : number(row[token]);
          made.title = `${visible(label)}  ${words}`;
          if (out.has(token)) made.classList.add("out");
          else paint(made, row[token], high);
          made.addEventListener("pointerenter", () => {
            find("readout").textContent = placeName() + " · " + say("token", { label: visible(label), value: words });
          });
          made.addEventListener("pointerleave", () => sayWhere(row));
          return made;
        }),
      );
      find("high").textContent = number(high);
      find("ramp").style.background = `linear-gradient(to right, ${colours().join(",")})`;
    }

    function paint(made, value, high) {
      made.classList.toggle("zero", value === 0);
      const colour = value === 0 ? "" : colourOf(value, high);
      made.style.backgroundColor = value === 0 ? "transparent" : colour;
      made.style.color = colour ? inkOn(colour) : "";
    }

    function drawReading(row) {
      const out = state.bare ? leftOut(state.item) : new Set();
      const order = [...row.keys()].filter((token) => !out.has(token)).sort((one, other) => row[other] - row[one] || one - other);
      const high = state.fixed ? 1 : row[order[0]] || 1;
      const lines = order.slice(0, LISTED).map((token) => {
        const line = element("li");
        const bar = element("span", "bar");
        const fill = element("i");
        fill.style.width = `${(100 * row[token]) / high}%`;
        fill.style.backgroundColor = colourOf(0.72 * high, high);
        bar.append(fill);
        line.append(element("bdi", "label" + kindsOf(token), visible(state.item.labels[token])), bar, element("span", "value", number(row[token])));
        return line;
      });
      const rest = order.slice(LISTED);
      if (rest.length) {
        const sum = rest.reduce((total, token) => total + row[token], 0);
        lines.push(element("li", "rest", say("rest", { count: rest.length, value: number(sum) })));
      }
      find("reading").replaceChildren(...lines);
    }

    function drawGrid() {
      const values = new Map();
      for (const layer of layersDown)
        for (const head of headsAcross)
          values.set(keyOf(layer, head), massOf(state.item, rowOf(data, state.item, { layer, head, bare: state.bare })));
      const high = state.fixed ? 1 : Math.max(...values.values()) || 1;
      for (const layer of layersDown)
        for (const head of headsAcross) {
          const cell = cells.get(keyOf(layer, head));
          const value = values.get(keyOf(layer, head));
          const here = layer === state.layer && head === state.head;
          paint(cell, value, high);
          cell.tabIndex = here ? 0 : -1;
          cell.setAttribute("aria-selected", String(here));
          cell.title = say("cell", { layer: layerName(layer), head: headName(head), value: number(value) });
          cell.setAttribute("aria-label", cell.title);
        }
      find("grid-title").textContent = say(state.item.cues.length ? "grid_cue" : "grid_other");
      find("grid").setAttribute("aria-label", find("grid-title").textContent);
      find("grid-scale").textContent = `0–${number(high)}`;
    }

    // The page opens where the first sentence's target looks at its cue the most.
    function strongest() {
      let best = { layer: 0, head: 0, value: -1 };
      for (const layer of data.layers.keys())
        for (let head = 0; head < data.heads; head++) {
          const value = massOf(state.item, rowOf(data, state.item, { layer, head, bare: false }));
          if (value > best.value) best = { layer, head, value };
        }
      return best;
    }

    buildGrid();
    filter();
    root.hidden = false;
    const { layer, head } = strongest();
    select(layer, head);
    return draw;
  }

  const redraws = [...document.querySelectorAll("[data-viewer]")].map(startViewer);
  const redrawAll = () => redraws.forEach((redraw) => redraw());
  darkScheme.addEventListener("change", redrawAll);
  for (const [name, now] of [["beforeprint", true], ["afterprint", false]])
    window.addEventListener(name, () => {
      printing = now;
      redrawAll();
    });
})();
