// What stands around the picture: classes, figures, the regions of the request, the model's turn, the end.

const $ = (id) => document.getElementById(id);

function make(tag, values = {}, ...children) {
  const element = Object.assign(document.createElement(tag), values);
  element.append(...children);
  return element;
}

/** An element's children, replaced only where something has changed: the focus stays where it is. */
function fill(element, key, children) {
  if (element.dataset.key === key) return;
  element.dataset.key = key;
  element.replaceChildren(...children());
}

export function showClasses(editor) {
  const entries = [...editor.classes.map((entry, i) => ({ ...entry, key: i < 9 ? `${i + 1}` : i < 18 ? `⇧${i - 8}` : "" })),
    { number: editor.ignore, name: "cannot tell", key: "0" }];
  fill($("classes"), JSON.stringify(entries), () => entries.map(({ number, name, colour, key }) => {
    const swatch = make("span", { className: colour ? "swatch" : "swatch striped" });
    if (colour) swatch.style.backgroundColor = colour;
    const button = make("button", { title: name }, swatch, make("span", { className: "name", textContent: name }));
    if (key) button.append(make("kbd", { textContent: key }));
    button.dataset.value = number;
    return button;
  }));
  $("classes").classList.toggle("many", entries.length > 9);
  for (const button of $("classes").children) button.setAttribute("aria-pressed", Number(button.dataset.value) === editor.value);
}

export function showTools(editor, region) {
  for (const button of document.querySelectorAll("[data-tool]")) button.setAttribute("aria-pressed", button.dataset.tool === editor.tool);
  const hide = document.querySelector("[data-act=hide]");
  hide.setAttribute("aria-pressed", editor.hidden);
  document.querySelector("[data-act=undo]").disabled = !editor.area || (!editor.history.before.length && !editor.corners.length);
  document.querySelector("[data-act=redo]").disabled = !editor.area || !editor.history.after.length;
  document.querySelector("[data-act=reset]").disabled = !region;
  document.querySelector("[data-act=skip]").disabled = !region || region.saved;
  $("size").value = editor.sizeStep;
  $("size").disabled = !["brush", "superpixel"].includes(editor.tool);
  $("size-text").textContent = editor.tool === "brush" ? `${editor.size} px` : editor.tool === "superpixel" ? "of patches" : "";
}

const isTouched = () => matchMedia("(hover: none)").matches;

/** One line below the picture. */
export function showStatus(editor, region) {
  if (!region || !editor.area) return ($("status").textContent = "");
  const { mask, inside } = editor.area;
  let open = 0, all = 0;
  for (let place = 0; place < mask.length; place++) {
    if (inside && !inside[place]) continue;
    all++;
    if (mask[place] === editor.ignore) open++;
  }
  const name = editor.classes.find(({ number }) => number === editor.value)?.name ?? "cannot tell";
  const parts = [`${region.box[2]} × ${region.box[3]} px`, `painting ${name}`];
  if (open) parts.push(`${Math.max(1, Math.round((100 * open) / all))} % without a class`);
  if (editor.corners.length) parts.push(isTouched() ? "tap the first corner to close the polygon" : "Enter closes the polygon, Esc drops it");
  $("status").textContent = parts.join("  ·  ");
}

export function showFigures(state) {
  const { request, labelled, budgets, scores } = state;
  $("run").textContent = state.run;
  $("request-text").textContent = request
    ? `${request.answered} of ${request.wanted} regions done${request.skipped ? `, ${request.skipped} put off` : ""}`
    : state.phase === "done" ? "All regions are labelled" : "Starting …";
  $("request-bar").style.width = `${request ? Math.min(100, (100 * request.answered) / Math.max(1, request.wanted)) : state.phase === "done" ? 100 : 0}%`;
  const now = labelled + (state.phase === "label" ? request.answered : 0);
  $("labelled").textContent = labelled === null ? "–" : now;
  $("next-budget").textContent = budgets.find((budget) => budget > now) ?? (budgets.length ? "reached" : "–");
  const known = scores.filter((score) => score !== null);
  $("miou").textContent = known.length ? `${(100 * known.at(-1)).toFixed(1)} %` : "–";
  spark(known);
}

function spark(values) {
  const line = $("spark").firstElementChild;
  $("spark").style.display = values.length > 1 ? "" : "none";
  const low = Math.min(...values), span = Math.max(...values) - low || 1;
  line.setAttribute("points", values.map((value, i) => `${2 + (56 * i) / Math.max(1, values.length - 1)},${17 - (14 * (value - low)) / span}`).join(" "));
}

const SAID = { open: "open", mine: "yours", theirs: "in other hands", saved: "done", skipped: "put off" };

/** The regions of the request, one chip each. */
export function showChips(state, region) {
  const regions = state.request?.regions ?? [];
  fill($("chips"), JSON.stringify([regions, state.phase]), () => regions.map((entry) => {
    const by = entry.who ? ` (${entry.who})` : "";
    const chip = make("button", { className: `chip ${entry.state}`, textContent: entry.rank, title: `Region ${entry.rank}: ${SAID[entry.state]}${by}` });
    chip.dataset.region = entry.region;
    chip.disabled = state.phase === "done" || entry.state === "theirs";
    return chip;
  }));
  for (const chip of $("chips").children) {
    const isCurrent = Number(chip.dataset.region) === region?.region;
    if (isCurrent && !chip.classList.contains("current")) chip.scrollIntoView({ block: "nearest", inline: "center" });
    chip.classList.toggle("current", isCurrent);
  }
  $("earlier-button").hidden = !state.earlier.length;
  $("finish").hidden = !(state.phase === "label" && state.request.can_finish && !state.request.is_complete);
}

export function showEarlier(state) {
  fill($("earlier-list"), JSON.stringify(state.earlier), () => state.earlier.map((entry) => {
    const picture = make("img", { src: `api/regions/${entry.region}/thumbnail.png?version=${entry.version}`, alt: "", loading: "lazy" });
    const text = make("span", { textContent: `${entry.image}` }), by = make("small", { textContent: `${entry.who || "?"}, version ${entry.version}` });
    const button = make("button", { className: "past" }, picture, text, by);
    button.dataset.region = entry.region;
    return button;
  }));
}

const TITLES = { starting: "ralseg starts", choosing: "The model chooses", training: "The model learns", final: "Final training" };

/** What the model does while nobody is asked, or that others have the rest; nothing while a region is in hand. */
export function showTurn(state, isFree) {
  const { model } = state, waits = state.phase === "label";
  $("turn").hidden = !isFree;
  $("turn-title").textContent = waits ? "Nothing left for you now" : TITLES[model.doing] ?? "The model's turn";
  $("turn-text").textContent = waits ? "Others have the last regions in hand. The model goes on when they are saved." : model.text;
  $("turn-hint").textContent = waits ? "" : model.doing === "final" ? "The scores appear here." : "You need not wait here: the next regions appear by themselves.";
  $("turn").classList.toggle("still", waits);
  $("turn-bar").style.width = model.share === null ? "" : `${Math.round(100 * model.share)}%`;
  $("turn-bar").parentElement.classList.toggle("unsure", model.share === null);
  $("turn-bar").parentElement.hidden = $("turn-steps").hidden = waits;
  for (const step of $("turn-steps").children) step.classList.toggle("now", step.dataset.step === model.doing);
}

/** The end: scores, and what to do with the model. */
export function showOver(state) {
  $("over").hidden = state.phase !== "done";
  if (state.phase !== "done" || !state.result) return;
  const { budgets, command, text } = state.result;
  $("over-text").textContent = text;
  $("predict").textContent = command;
  fill($("over-scores"), JSON.stringify(budgets), () => {
    const head = make("tr", {}, make("th", { textContent: "labelled regions" }), make("th", { textContent: "test mIoU" }), make("th"));
    const rows = budgets.map(({ budget, miou }) => {
      const bar = make("div", { className: "score" }, make("div"));
      bar.firstChild.style.width = `${100 * miou}%`;
      return make("tr", {}, make("td", { textContent: budget }), make("td", { textContent: `${(100 * miou).toFixed(2)} %` }), make("td", {}, bar));
    });
    return [make("table", {}, head, ...rows), ...byClass(budgets.at(-1))];
  });
}

function byClass(last) {
  const rows = Object.entries(last?.classes ?? {}).map(([name, iou]) => {
    const bar = make("div", { className: "score" }, make("div"));
    bar.firstChild.style.width = `${100 * iou}%`;
    return make("tr", {}, make("td", { textContent: name }), make("td", { textContent: `${(100 * iou).toFixed(1)} %` }), make("td", {}, bar));
  });
  return rows.length ? [make("h3", { textContent: `Class by class, ${last.budget} regions` }), make("table", {}, ...rows)] : [];
}

/** A note over the picture that goes away by itself, unless something is wrong. */
export function note(text, kind) {
  clearTimeout(note.timer);
  $("note").hidden = !text;
  $("note").textContent = text ?? "";
  $("note").className = kind;
  if (text && kind !== "bad") note.timer = setTimeout(() => ($("note").hidden = true), kind === "good" ? 1200 : 5000);
}
