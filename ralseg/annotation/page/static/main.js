// The page of `ralseg label`: who sits here, what the run is doing, and which region is in hand.

import { Away, tell } from "./api.js";
import { Desk, state as fetchState } from "./desk.js";
import { Editor } from "./editor.js";
import { Keys, Pointers } from "./hands.js";
import * as panels from "./panels.js";
import { View } from "./view.js";

const $ = (id) => document.getElementById(id);
const NAME = "ralseg name";
const OFTEN = 1000, SELDOM = 4000; // milliseconds between two looks at the run

const view = new View($("canvas"), $("overview"));
const editor = new Editor(view, () => changed());
const desk = new Desk(editor, view, { who, say: panels.note, changed: () => changed(false) });
let state = null;
let isAway = false;
let looks = 0, timer;

function who() {
  return localStorage.getItem(NAME) ?? "";
}

// -- the run ---------------------------------------------------------------------------------------

async function look() {
  clearTimeout(timer);
  const mine = ++looks;
  try {
    take(await fetchState(who()));
    if (isAway) panels.note("ralseg answers again.", "good");
    isAway = false;
  } catch (error) {
    if (error instanceof Away && state?.phase !== "done") {
      isAway = true;
      panels.note("ralseg does not answer. Is it still running? What you drew is kept here, and the page goes on as soon as it is back.", "bad");
    } else if (state?.phase !== "done") panels.note(error.message, "bad");
  }
  if (mine !== looks) return; // a later look goes on
  Object.assign(document.body.dataset, { away: isAway, looks });
  if (state?.phase !== "done") timer = setTimeout(look, state?.phase === "label" && !isAway && desk.region ? SELDOM : OFTEN);
}

function take(news) {
  const isNew = state?.request?.serial !== news.request?.serial;
  state = news;
  editor.setClasses(news.classes, news.ignore);
  const isLabelling = news.phase === "label" && who();
  if (!isLabelling && desk.region && !desk.region.saved && !desk.busy) {
    if (editor.touched) panels.note("Enough was answered without this region: the model goes on.", "");
    desk.putDown();
  }
  if (isNew) desk.isEmpty = false;
  if (isLabelling && !desk.region && !desk.busy && !news.request.is_complete) desk.next();
  changed(false);
}

/** Look at everything again; `isDrawn`: the mask may have changed. */
function changed(isDrawn = true) {
  if (!state) return;
  Object.assign(document.body.dataset, {
    phase: state.phase, region: desk.region?.region ?? "", busy: desk.busy, tool: editor.tool, value: editor.value,
    size: editor.size, patches: editor.patches ? editor.patchLevel : "", version: desk.region?.version ?? "", serial: state.request?.serial ?? "",
  });
  panels.showFigures(state);
  panels.showClasses(editor);
  panels.showTools(editor, desk.region);
  panels.showStatus(editor, desk.region);
  panels.showChips(state, desk.region);
  panels.showEarlier(state);
  panels.showTurn(state, !desk.region && (state.phase === "model" || (state.phase === "label" && desk.isEmpty)));
  panels.showOver(state);
  $("image-name").textContent = desk.region ? `${desk.region.image}` : "";
  $("save").disabled = !desk.region || desk.busy;
  $("save").firstChild.textContent = desk.region?.saved ? "Save correction" : "Save and next";
  if (isDrawn) {
    desk.keepDraft();
    desk.fetchPatches();
  }
}

// -- buttons ---------------------------------------------------------------------------------------

const acts = {
  undo: () => editor.area && editor.undo(),
  redo: () => editor.area && editor.redo(),
  hide: () => editor.hide(!editor.hidden),
  fit: () => view.fit(),
  "zoom-in": () => view.zoom(1.4, centre()),
  "zoom-out": () => view.zoom(1 / 1.4, centre()),
  save: () => desk.save()?.then(look1),
  skip: () => (desk.region?.saved ? null : desk.skip()?.then(look1)),
  reset: () => desk.reset(),
  finish: () => desk.alone(() => tell("finish", { who: who() })).then(look1),
  lighter: () => lighten(1),
  darker: () => lighten(-1),
  help: () => help(),
  earlier: () => state?.earlier.length && $("earlier").showModal(),
  previous: () => turn(-1),
  following: () => turn(1),
};

/** How light the picture is shown; nobody but the eye is told. */
function lighten(step) {
  $("light").value = Number($("light").value) + step;
  view.light = 1.25 ** Number($("light").value);
  view.redraw();
}

/** Where the cursor of the keys is, or the middle. */
function centre() {
  return editor.byKeys && editor.cursor ? view.toScreen(editor.cursor) : undefined;
}

async function look1() {
  take(await fetchState(who()).catch(() => state));
}

/** The region before or after the one in hand. */
function turn(step) {
  const regions = (state?.request?.regions ?? []).filter((entry) => entry.state !== "theirs");
  const place = regions.findIndex((entry) => entry.region === desk.region?.region);
  const next = regions[place < 0 ? 0 : place + step];
  if (next) desk.open(next.region);
}

function act(name) {
  acts[name]?.();
  return true;
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.tool) editor.use(button.dataset.tool);
  else if (button.dataset.act) act(button.dataset.act);
  else if (button.dataset.value) editor.choose(Number(button.dataset.value));
  else if (button.dataset.region) {
    $("earlier").close();
    desk.open(Number(button.dataset.region));
  } else return;
  if (event.detail && !document.querySelector("dialog[open]")) $("canvas").focus({ preventScroll: true }); // clicked, not by keys
});

$("size").addEventListener("input", () => editor.resize(Number($("size").value)));
$("opacity").addEventListener("input", () => {
  editor.opacity = Number($("opacity").value) / 100;
  view.redraw();
});
$("light").addEventListener("input", () => lighten(0));
$("copy").addEventListener("click", async () => {
  await navigator.clipboard?.writeText($("predict").textContent);
  $("copy").textContent = "Copied";
});

// -- who, and how ----------------------------------------------------------------------------------

function help() {
  $("name").value = who();
  $("start").textContent = who() ? "Go on" : "Start";
  $("help").showModal();
  $("name").focus();
}

$("person").addEventListener("click", help);
$("help").addEventListener("cancel", (event) => who() || event.preventDefault());
$("help").addEventListener("click", (event) => event.target === $("help") && who() && $("help").close());
$("name-form").addEventListener("submit", () => {
  localStorage.setItem(NAME, $("name").value.trim());
  greet();
  look1();
});
$("name").addEventListener("input", () => $("name").setCustomValidity($("name").value.trim() ? "" : "A name, please"));

function greet() {
  $("who").textContent = who() || "name";
  $("initial").textContent = (who() || "?").slice(0, 1).toUpperCase();
  if (!who()) help();
}

/** Browsers let hidden pages look but seldom: whoever comes back sees at once how things stand. */
document.addEventListener("visibilitychange", () => document.hidden || state?.phase === "done" || look());

new Pointers($("canvas"), editor, view);
new Keys(editor, view, act);
greet();
look();
