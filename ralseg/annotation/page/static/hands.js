// Mouse, pen, fingers and keys: what they mean to the editor.

const HELD = 350; // milliseconds after which a key that was held lets go again

/** Pointers on the canvas. One finger paints unless a pen was seen; two move and zoom. */
export class Pointers {
  constructor(canvas, editor, view) {
    Object.assign(this, { canvas, editor, view });
    this.down = new Map();
    this.penSeen = false;
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this.release(event));
    canvas.addEventListener("pointerleave", () => { if (!this.down.size && !editor.byKeys) editor.hover(null); });
    canvas.addEventListener("contextmenu", (event) => event.preventDefault());
    // or else a stroke that ends in a swing sets the page in motion, and the next tap, on Save perhaps, only stops that
    canvas.addEventListener("touchstart", (event) => event.preventDefault(), { passive: false });
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  press(event) {
    if (!this.editor.area) return;
    event.preventDefault();
    this.canvas.focus({ preventScroll: true });
    this.canvas.setPointerCapture(event.pointerId);
    this.penSeen ||= event.pointerType === "pen";
    this.down.set(event.pointerId, { x: event.clientX, y: event.clientY });
    this.seen = { x: event.clientX, y: event.clientY };
    this.editor.byKeys = false;
    if (this.down.size > 1) {
      this.painting = null;
      this.editor.cancel();
    } else if (this.moves(event)) this.painting = null;
    else {
      this.painting = event.pointerId;
      this.editor.press(this.view.toRegion(event), (event.pointerType === "mouse" ? 9 : 22) / this.view.scale);
    }
  }

  /** Whether a pointer moves the picture in place of painting. */
  moves(event) {
    return this.editor.tool === "hand" || event.button > 0 || (this.penSeen && event.pointerType === "touch");
  }

  move(event) {
    if (!this.editor.area) return;
    const before = this.down.get(event.pointerId);
    if (!before) return this.hover(event);
    if (this.painting === event.pointerId) {
      const between = event.getCoalescedEvents?.() ?? [];
      for (const each of between.length ? between : [event]) this.editor.drag(this.view.toRegion(each));
    } else this.shift(event, before);
    this.seen = { x: event.clientX, y: event.clientY };
    this.down.set(event.pointerId, this.seen);
  }

  /** A mouse that is moved without a button: browsers also say so of one that rests while the page changes. */
  hover(event) {
    const rests = event.clientX === this.seen?.x && event.clientY === this.seen?.y;
    this.seen = { x: event.clientX, y: event.clientY };
    if (event.pointerType !== "touch" && !rests && !this.editor.stroke) this.editor.hover(this.view.toRegion(event));
  }

  /** One pointer moves the picture; of two, the middle moves it and the distance zooms. */
  shift(event, before) {
    const other = [...this.down].find(([id]) => id !== event.pointerId)?.[1];
    if (!other) return this.view.pan(event.clientX - before.x, event.clientY - before.y);
    const box = this.canvas.getBoundingClientRect();
    this.view.pan((event.clientX - before.x) / 2, (event.clientY - before.y) / 2);
    const apart = (one) => Math.max(1, Math.hypot(one.x - other.x, one.y - other.y));
    const middle = { x: (event.clientX + other.x) / 2 - box.left, y: (event.clientY + other.y) / 2 - box.top };
    this.view.zoom(apart({ x: event.clientX, y: event.clientY }) / apart(before), middle);
  }

  release(event) {
    if (!this.down.delete(event.pointerId)) return;
    if (this.painting !== event.pointerId) return;
    this.painting = null;
    if (event.type === "pointercancel") this.editor.cancel();
    else this.editor.release();
    if (event.pointerType !== "mouse") this.editor.hover(this.editor.tool === "polygon" ? this.editor.cursor : null);
  }

  wheel(event) {
    event.preventDefault();
    if (!this.editor.area) return;
    const box = this.canvas.getBoundingClientRect();
    this.view.zoom(Math.exp(-event.deltaY / 400), { x: event.clientX - box.left, y: event.clientY - box.top });
  }
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const TOOLS = { b: "brush", s: "superpixel", p: "polygon", f: "fill", v: "hand" };
const ACTS = {
  z: "undo", y: "redo", r: "fit", "+": "zoom-in", "=": "zoom-in", "-": "zoom-out", x: "skip", t: "reset", e: "earlier",
  "?": "help", PageUp: "previous", PageDown: "following",
};

/** Keys, wherever the focus is but in a text field. `act` does what the button of that name does. */
export class Keys {
  constructor(editor, view, act) {
    Object.assign(this, { editor, view, act });
    window.addEventListener("keydown", (event) => this.press(event));
    window.addEventListener("keyup", (event) => this.release(event));
    window.addEventListener("blur", () => this.letGo());
  }

  press(event) {
    if (document.querySelector("dialog[open]") || isTyping(event.target)) return;
    if ((event.ctrlKey || event.metaKey) && !"zy".includes(event.key.toLowerCase())) return;
    if (isButton(event.target) && (event.key === " " || event.key === "Enter" || event.key === "Tab")) return;
    if (this.general(event) || (this.editor.area && this.painting(event))) event.preventDefault();
  }

  /** What needs no region in hand. */
  general(event) {
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (key === "z" && event.shiftKey) return this.act("redo");
    if (key === "l") return this.act(event.shiftKey ? "darker" : "lighter");
    if (key === "f" && event.shiftKey) return this.editor.area ? (this.editor.fillAll(), true) : false;
    if (TOOLS[key]) return this.editor.use(TOOLS[key]), true;
    if (ACTS[key]) return event.repeat && key !== "z" && key !== "y" ? true : this.act(ACTS[key]);
    if (key === "h") return this.hide(event);
    return false;
  }

  painting(event) {
    const { editor } = this, { key } = event;
    if (ARROWS[key]) return this.arrow(ARROWS[key], event);
    const digit = /^(?:Digit|Numpad)(\d)$/.exec(event.code);
    if (digit) return this.number(Number(digit[1]), event.shiftKey);
    if (key === " ") return this.space(event);
    if (key === "Enter") return editor.corners.length ? (editor.closePolygon(), true) : event.repeat || this.act("save");
    if (key === "Escape") return editor.cancel(), true;
    if (key === "Backspace" && editor.corners.length) return editor.dropCorner(), true;
    const simple = {
      "[": () => editor.resize(editor.sizeStep - 1), "]": () => editor.resize(editor.sizeStep + 1),
      ",": () => editor.chooseNext(-1), ".": () => editor.chooseNext(1), i: () => editor.pick(), I: () => editor.pick(),
    };
    return simple[key] ? (simple[key](), true) : false;
  }

  arrow([dx, dy], event) {
    if (event.altKey) this.view.pan(-40 * dx, -40 * dy);
    else this.editor.step(dx * (event.shiftKey ? 10 : 1), dy * (event.shiftKey ? 10 : 1));
    return true;
  }

  /** 0 is "cannot tell"; 1 is the first class. */
  number(digit, shifted) {
    const { editor } = this, place = digit - 1 + (shifted ? 9 : 0);
    if (digit === 0) editor.choose(editor.ignore);
    else if (editor.classes[place]) editor.choose(editor.classes[place].number);
    return true;
  }

  space(event) {
    if (event.repeat) return true;
    const { editor } = this;
    editor.byKeys = true;
    if (!editor.cursor) editor.step(0, 0);
    editor.press(editor.cursor);
    return true;
  }

  hide(event) {
    if (event.repeat) return true;
    this.hiddenAt = performance.now();
    this.act("hide");
    return true;
  }

  release(event) {
    if (event.key === " ") this.editor.release();
    if (event.key.toLowerCase() === "h" && this.hiddenAt && performance.now() - this.hiddenAt > HELD) this.act("hide");
    if (event.key.toLowerCase() === "h") this.hiddenAt = 0;
  }

  letGo() {
    this.editor.release();
  }
}

const isTyping = (element) => element instanceof HTMLInputElement && element.type !== "range";
const isButton = (element) => element instanceof HTMLButtonElement;
