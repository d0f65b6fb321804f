// The region in hand: its mask, the tool, and what a press, a drag and a release mean to it.

import { History, SIZES, paintAll, paintConnected, paintLine, paintPatch, paintPolygon } from "./paint.js";
import { rgb } from "./view.js";

export class Editor {
  constructor(view, changed) {
    this.view = view;
    this.changed = changed; // called when a panel should look again
    this.history = new History();
    this.tool = "brush";
    this.value = 0;
    this.sizeStep = 4;
    this.opacity = 0.45;
    this.hidden = false;
    this.corners = [];
    this.classes = [];
    this.ignore = 255;
    this.words = new Uint32Array(256);
    view.editor = this;
  }

  get size() {
    return SIZES[this.sizeStep];
  }

  setClasses(classes, ignore) {
    this.classes = classes;
    this.ignore = ignore;
    for (const { number, colour } of classes) {
      const [red, green, blue] = rgb(colour);
      this.words[number] = (255 << 24) | (blue << 16) | (green << 8) | red;
    }
    const isKnown = this.value === ignore || classes.some(({ number }) => number === this.value);
    if (!isKnown) this.value = classes[0]?.number ?? ignore;
  }

  colourOf(value) {
    return this.classes.find(({ number }) => number === value)?.colour ?? "#ffffff";
  }

  /** Take a region into hand. `area`: mask, width, height, and inside where the region does not fill its box. */
  open(area) {
    this.area = area;
    this.history.clear();
    this.corners = [];
    this.patches = null;
    this.cursor = null;
    this.byKeys = false;
    this.clicks = 0;
    this.touched = false; // whether anything was changed since it was opened or saved
    this.stroke = null;
  }

  close() {
    this.area = null;
    this.stroke = null;
    this.corners = [];
  }

  pixel(point) {
    return point && { x: Math.floor(point.x), y: Math.floor(point.y) };
  }

  isIn({ x, y }) {
    return x >= 0 && y >= 0 && x < this.area.width && y < this.area.height;
  }

  // -- strokes ------------------------------------------------------------------------------------

  hover(point, byKeys = false) {
    this.cursor = point;
    this.byKeys = byKeys;
    this.view.redraw();
  }

  /** Begin a stroke; `near` is how close to the first corner, in pixels of the region, closes a polygon. */
  press(point, near = 0) {
    if (!this.area) return;
    this.hover(point, this.byKeys);
    this.clicks += 1;
    if (this.tool === "polygon") return this.addCorner(point, near);
    this.history.keep(this.area.mask);
    this.stroke = this.pixel(point);
    this.paint(this.stroke, this.stroke);
  }

  drag(point) {
    this.hover(point, this.byKeys);
    if (!this.stroke) return;
    const to = this.pixel(point);
    if (to.x === this.stroke.x && to.y === this.stroke.y) return;
    if (this.tool !== "fill") this.paint(this.stroke, to);
    this.stroke = to;
  }

  release() {
    if (!this.stroke) return;
    this.stroke = null;
    this.settle();
  }

  /** A stroke that was not meant: a second finger came down, or Escape. */
  cancel() {
    if (this.corners.length) {
      this.corners = [];
      this.view.redraw();
    }
    if (!this.stroke) return;
    this.stroke = null;
    this.clicks -= 1;
    this.area.mask.set(this.history.before.at(-1));
    this.history.drop();
    this.view.repaint();
    this.changed();
  }

  paint(from, to) {
    const { area, value } = this;
    if (this.tool === "brush") paintLine(area, from, to, this.size, value);
    else if (!this.isIn(to)) return;
    else if (this.tool === "fill") paintConnected(area, to, value);
    else if (this.tool === "superpixel" && this.patches) paintPatch(area, this.patches, to, value);
    this.view.repaint();
  }

  /** After a change: forget it if it changed nothing. */
  settle() {
    const before = this.history.before.at(-1);
    if (before && before.every((value, place) => value === this.area.mask[place])) this.history.drop();
    else this.touched = true;
    this.view.repaint();
    this.changed();
  }

  addCorner(point, near) {
    const corner = { x: Math.round(point.x), y: Math.round(point.y) }, [first] = this.corners;
    const closes = first && this.corners.length > 2 && Math.hypot(point.x - first.x, point.y - first.y) <= Math.max(near, 0.5);
    if (closes) return this.closePolygon();
    this.corners.push(corner);
    this.view.redraw();
    this.changed();
  }

  closePolygon() {
    const { corners } = this;
    this.corners = [];
    if (corners.length > 2) {
      this.history.keep(this.area.mask);
      paintPolygon(this.area, corners, this.value);
      this.settle();
    } else this.view.redraw();
  }

  dropCorner() {
    this.corners.pop();
    this.view.redraw();
  }

  // -- what buttons and keys do -------------------------------------------------------------------

  use(tool) {
    this.tool = tool;
    this.corners = [];
    this.view.redraw();
    this.changed();
  }

  choose(value) {
    this.value = value;
    this.view.redraw();
    this.changed();
  }

  /** The class before or after the chosen one; "cannot tell" is the last. */
  chooseNext(step) {
    const values = [...this.classes.map(({ number }) => number), this.ignore];
    this.choose(values[(values.indexOf(this.value) + step + values.length) % values.length]);
  }

  resize(step) {
    this.sizeStep = Math.min(SIZES.length - 1, Math.max(0, step));
    this.view.redraw();
    this.changed();
  }

  pick() {
    const at = this.pixel(this.cursor);
    if (at && this.isIn(at)) this.choose(this.area.mask[at.y * this.area.width + at.x]);
  }

  hide(hidden) {
    this.hidden = hidden;
    this.view.redraw();
    this.changed();
  }

  fillAll() {
    this.clicks += 1;
    this.history.keep(this.area.mask);
    paintAll(this.area, this.value);
    this.settle();
  }

  /** Another mask in the place of this one, which undo brings back. */
  replace(mask) {
    this.history.keep(this.area.mask);
    this.area.mask.set(mask);
    this.settle();
  }

  undo() {
    if (this.corners.length) return this.dropCorner();
    this.travel(this.history.undo(this.area.mask));
  }

  redo() {
    this.travel(this.history.redo(this.area.mask));
  }

  travel(moved) {
    if (moved) this.touched = true;
    this.view.repaint();
    this.changed();
  }

  /** Move the cursor by pixels (corners of polygons lie between them), and draw where Space is held. */
  step(dx, dy) {
    const { width, height } = this.area, half = this.tool === "polygon" ? 0 : 0.5;
    const from = this.cursor || { x: width / 2, y: height / 2 };
    const moved = (value, by, most) => Math.min(most - half, Math.max(half, Math.floor(value) + half + by));
    const to = { x: moved(from.x, dx, width), y: moved(from.y, dy, height) };
    this.byKeys = true;
    if (this.stroke) this.drag(to);
    else this.hover(to, true);
    this.view.follow(this.pixel(to));
  }
}
