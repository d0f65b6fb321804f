// The picture: photograph, dimmed margin, colours of the mask, frame and cursor. It shows the mask and never changes it.

const FRAME = "#ffd166";
const LARGE = 100000; // pixels of a region whose outlines wait for the end of a stroke
const MOST_LINES = 20000; // of outlines: beyond that they would only slow the brush down
const SHARE = 0.8; // of the stage that a region takes up at first

/** "#rrggbb" as three numbers. */
export const rgb = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));

/** Lines between pixels of different value; with `around`, also where pixels of value 1 touch the border of the map. */
export function edges(values, width, height, around = false) {
  const path = new Path2D();
  let drawn = 0;
  const lines = (count, length, step, along, draw) => {
    for (let line = around ? 0 : 1; line < count + (around ? 1 : 0); line++) {
      let start = -1;
      for (let place = line * step, k = 0; k < length; k++, place += along) {
        const before = line > 0 ? values[place - step] : 0, after = line < count ? values[place] : 0;
        if (before !== after) start = start < 0 ? k : start;
        else if (start >= 0) {
          draw(line, start, k);
          start = -1;
        }
      }
      if (start >= 0) draw(line, start, length);
    }
  };
  lines(height, width, width, 1, (y, from, to) => { drawn++; path.moveTo(from, y); path.lineTo(to, y); });
  lines(width, height, 1, width, (x, from, to) => { drawn++; path.moveTo(x, from); path.lineTo(x, to); });
  return drawn < MOST_LINES ? path : new Path2D();
}

export class View {
  constructor(canvas, overview) {
    this.canvas = canvas;
    this.overview = overview;
    this.context = canvas.getContext("2d");
    this.scale = 1;
    this.left = this.top = 0;
    this.region = null;
    this.light = 1;
    new ResizeObserver(() => this.resized()).observe(canvas.parentElement);
  }

  /** Show a region: its box and the photograph around it. */
  show(region, photo, whole, area) {
    Object.assign(this, { region, photo, whole, area });
    this.colours = offscreen(area.width, area.height);
    this.striped = offscreen(area.width, area.height);
    this.shape = area.inside ? edges(area.inside, area.width, area.height, true) : null;
    this.outside = area.inside ? painted(area, (place) => !area.inside[place], [8, 10, 12], 170) : null;
    this.patchEdges = null;
    this.stale = true;
    this.exposure = exposure(whole);
    this.fit();
  }

  clear() {
    this.region = null;
    this.overview.width = this.overview.height = 0;
    this.overview.style.height = "0";
    this.redraw();
  }

  // -- where things are ---------------------------------------------------------------------------

  resized() {
    const ratio = window.devicePixelRatio || 1, { clientWidth, clientHeight } = this.canvas.parentElement;
    if (!clientWidth || !clientHeight) return;
    this.canvas.width = Math.round(clientWidth * ratio);
    this.canvas.height = Math.round(clientHeight * ratio);
    this.width = clientWidth;
    this.height = clientHeight;
    this.fit();
  }

  /** The whole region, with some of its surroundings. */
  fit() {
    if (!this.region || !this.width) return this.redraw();
    const { width, height } = this.area;
    this.scale = Math.min((this.width * SHARE) / width, (this.height * SHARE) / height);
    this.left = (this.width - width * this.scale) / 2;
    this.top = (this.height - height * this.scale) / 2;
    this.redraw();
  }

  /** A place on the screen in pixels of the region. */
  toRegion(event) {
    const box = this.canvas.getBoundingClientRect();
    return { x: (event.clientX - box.left - this.left) / this.scale, y: (event.clientY - box.top - this.top) / this.scale };
  }

  /** The other way: from pixels of the region to the canvas. */
  toScreen(point) {
    return { x: this.left + point.x * this.scale, y: this.top + point.y * this.scale };
  }

  zoom(factor, at = { x: this.width / 2, y: this.height / 2 }) {
    const before = this.scale;
    this.scale = Math.min(200, Math.max(0.05, before * factor));
    this.left = at.x - ((at.x - this.left) * this.scale) / before;
    this.top = at.y - ((at.y - this.top) * this.scale) / before;
    this.keepInSight();
  }

  pan(dx, dy) {
    this.left += dx;
    this.top += dy;
    this.keepInSight();
  }

  /** A region that is dragged away must leave a hand's breadth to drag it back by. */
  keepInSight() {
    const margin = 60, { width, height } = this.area || { width: 0, height: 0 };
    this.left = Math.min(this.width - margin, Math.max(margin - width * this.scale, this.left));
    this.top = Math.min(this.height - margin, Math.max(margin - height * this.scale, this.top));
    this.redraw();
  }

  /** Bring a pixel of the region into view: the cursor of the arrow keys. */
  follow(point) {
    const { x, y } = this.toScreen({ x: point.x + 0.5, y: point.y + 0.5 }), edge = 40;
    const dx = x < edge ? edge - x : Math.min(0, this.width - edge - x);
    const dy = y < edge ? edge - y : Math.min(0, this.height - edge - y);
    if (dx || dy) this.pan(dx, dy);
    else this.redraw();
  }

  // -- drawing ------------------------------------------------------------------------------------

  /** The mask has changed. */
  repaint() {
    this.stale = true;
    this.redraw();
  }

  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  draw() {
    const { context, editor } = this, ratio = window.devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    if (!this.region || !editor) return;
    this.drawPhoto(context);
    if (this.stale) this.colour(editor);
    if (!editor.hidden) this.drawMask(context, editor, ratio);
    this.inRegion(context, () => {
      if (editor.tool === "superpixel" && editor.patches) this.drawPatches(context, editor);
      this.drawFrame(context);
      if (editor.corners.length) this.drawPolygon(context, editor);
      if (editor.cursor) this.drawCursor(context, editor);
    });
    this.drawOverview();
    Object.assign(this.canvas.dataset, { scale: this.scale, left: this.left, top: this.top });
  }

  /** Draw in pixels of the region; `this.line` is a line one pixel wide on the screen. */
  inRegion(context, draw) {
    context.save();
    context.translate(this.left, this.top);
    context.scale(this.scale, this.scale);
    this.line = 1 / this.scale;
    draw();
    context.restore();
  }

  drawPhoto(context) {
    const { view, box } = this.region;
    this.inRegion(context, () => {
      const [x, y] = [view[0] - box[0], view[1] - box[1]];
      context.imageSmoothingEnabled = true;
      context.imageSmoothingQuality = "high";
      context.filter = `brightness(${(this.light * this.exposure).toFixed(3)})`;
      context.drawImage(this.photo, x, y, view[2], view[3]);
      context.filter = "none";
      context.fillStyle = "rgba(9, 12, 14, 0.62)";
      context.beginPath();
      context.rect(x, y, view[2], view[3]);
      context.rect(0, 0, this.area.width, this.area.height);
      context.fill("evenodd");
      context.imageSmoothingEnabled = false;
      if (this.outside) context.drawImage(this.outside, 0, 0);
    });
  }

  /** Class numbers to colours, for the eye only. */
  colour(editor) {
    const { area } = this, image = new ImageData(area.width, area.height), stripes = new ImageData(area.width, area.height);
    const words = new Uint32Array(image.data.buffer), dark = new Uint32Array(stripes.data.buffer);
    for (let place = 0; place < area.mask.length; place++) {
      if (area.inside && !area.inside[place]) continue;
      if (area.mask[place] === editor.ignore) dark[place] = 0xff000000;
      else words[place] = editor.words[area.mask[place]];
    }
    this.colours.getContext("2d").putImageData(image, 0, 0);
    this.striped.getContext("2d").putImageData(stripes, 0, 0);
    if (!editor.stroke || area.mask.length < LARGE) this.classEdges = edges(area.mask, area.width, area.height);
    this.stale = false;
  }

  drawMask(context, editor, ratio) {
    this.inRegion(context, () => {
      context.imageSmoothingEnabled = false;
      context.globalAlpha = editor.opacity;
      context.drawImage(this.colours, 0, 0);
    });
    this.drawStripes(context, ratio);
    this.inRegion(context, () => {
      context.lineCap = "square";
      context.strokeStyle = "rgba(0, 0, 0, 0.55)";
      context.lineWidth = 2.5 * this.line;
      context.stroke(this.classEdges);
      context.strokeStyle = "rgba(255, 255, 255, 0.85)";
      context.lineWidth = this.line;
      context.stroke(this.classEdges);
    });
  }

  /** What has no class: stripes in the size of the screen, whatever the zoom. */
  drawStripes(context, ratio) {
    const layer = (this.layer ||= document.createElement("canvas"));
    layer.width = this.canvas.width;
    layer.height = this.canvas.height;
    const own = layer.getContext("2d");
    own.scale(ratio, ratio);
    this.inRegion(own, () => {
      own.imageSmoothingEnabled = false;
      own.drawImage(this.striped, 0, 0);
    });
    own.globalCompositeOperation = "source-in";
    own.fillStyle = (this.pattern ||= own.createPattern(stripes(), "repeat"));
    own.fillRect(0, 0, this.width, this.height);
    context.drawImage(layer, 0, 0, this.width, this.height);
  }

  drawPatches(context, editor) {
    const { area } = this;
    this.patchEdges ||= edges(editor.patches, area.width, area.height);
    context.strokeStyle = "rgba(255, 255, 255, 0.4)";
    context.lineWidth = this.line;
    context.stroke(this.patchEdges);
    const at = editor.pixel(editor.cursor);
    if (!at || !editor.isIn(at)) return;
    const patch = editor.patches[at.y * area.width + at.x], key = `${patch} ${editor.value}`;
    if (this.chosen?.key !== key || this.chosen.of !== editor.patches) {
      const layer = painted(area, (place) => editor.patches[place] === patch, rgb(editor.colourOf(editor.value)), 165);
      this.chosen = { key, of: editor.patches, layer };
    }
    context.imageSmoothingEnabled = false;
    context.drawImage(this.chosen.layer, 0, 0);
  }

  drawFrame(context) {
    const { width, height } = this.area;
    for (const [colour, thick] of [["rgba(0, 0, 0, 0.7)", 5], [FRAME, 2.5]]) {
      context.strokeStyle = colour;
      context.lineWidth = thick * this.line;
      if (this.shape) context.stroke(this.shape);
      else context.strokeRect(0, 0, width, height);
    }
  }

  drawPolygon(context, editor) {
    const [first, ...rest] = editor.corners;
    context.beginPath();
    context.moveTo(first.x, first.y);
    rest.forEach((corner) => context.lineTo(corner.x, corner.y));
    if (editor.cursor) context.lineTo(Math.round(editor.cursor.x), Math.round(editor.cursor.y));
    context.lineJoin = "round";
    for (const [colour, thick] of [["rgba(0, 0, 0, 0.75)", 5], [editor.colourOf(editor.value), 2.5]]) {
      context.strokeStyle = colour;
      context.lineWidth = thick * this.line;
      context.stroke();
    }
    editor.corners.forEach((corner, i) => {
      context.beginPath();
      context.arc(corner.x, corner.y, (i ? 4 : 7) * this.line, 0, 7);
      context.fillStyle = i ? "#fff" : FRAME;
      context.fill();
      context.lineWidth = 1.5 * this.line;
      context.strokeStyle = "#000";
      context.stroke();
    });
  }

  /** What would be painted here. */
  drawCursor(context, editor) {
    const at = editor.pixel(editor.cursor), radius = editor.tool === "brush" ? editor.size / 2 : 0.5;
    const isCorner = editor.tool === "polygon";
    const x = isCorner ? Math.round(editor.cursor.x) : at.x + 0.5, y = isCorner ? Math.round(editor.cursor.y) : at.y + 0.5;
    for (const [colour, thick] of [["rgba(0, 0, 0, 0.8)", 3.5], ["#fff", 1.5]]) {
      context.strokeStyle = colour;
      context.lineWidth = thick * this.line;
      context.beginPath();
      if (editor.tool === "brush") context.arc(x, y, radius, 0, 7);
      if (editor.byKeys || editor.tool === "fill" || isCorner) cross(context, x, y, Math.max(radius, 6 * this.line), 7 * this.line);
      context.stroke();
    }
  }

  drawOverview() {
    const { whole, overview, region } = this, [width, height] = region.image_size;
    const ratio = window.devicePixelRatio || 1, room = overview.parentElement;
    const scale = Math.min(room.clientWidth / width, (Number(getComputedStyle(room).getPropertyValue("--tall")) || 190) / height);
    const wide = Math.round(width * scale), tall = Math.round(height * scale);
    overview.width = wide * ratio;
    overview.height = tall * ratio;
    overview.style.width = `${wide}px`;
    overview.style.height = `${tall}px`;
    const context = overview.getContext("2d");
    context.scale(ratio, ratio);
    context.filter = `brightness(${(this.light * this.exposure).toFixed(3)})`;
    context.drawImage(whole, 0, 0, wide, tall);
    context.filter = "none";
    const [x, y, w, h] = region.box.map((each) => each * scale);
    context.fillStyle = "rgba(9, 12, 14, 0.45)";
    context.beginPath();
    context.rect(0, 0, wide, tall);
    context.rect(x, y, w, h);
    context.fill("evenodd");
    for (const [colour, thick] of [["#000", 4], [FRAME, 2]]) {
      context.strokeStyle = colour;
      context.lineWidth = thick;
      context.strokeRect(x, y, Math.max(w, 3), Math.max(h, 3));
    }
  }
}

function cross(context, x, y, gap, arm) {
  for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
    context.moveTo(x + dx * gap, y + dy * gap);
    context.lineTo(x + dx * (gap + arm), y + dy * (gap + arm));
  }
}

function offscreen(width, height) {
  return Object.assign(document.createElement("canvas"), { width, height });
}

/** A layer of one colour, as thick as `alpha` where `isPainted`. */
function painted(area, isPainted, [red, green, blue], alpha) {
  const layer = offscreen(area.width, area.height), image = new ImageData(area.width, area.height);
  const words = new Uint32Array(image.data.buffer), word = (alpha << 24) | (blue << 16) | (green << 8) | red;
  for (let place = 0; place < area.mask.length; place++) if (isPainted(place)) words[place] = word;
  layer.getContext("2d").putImageData(image, 0, 0);
  return layer;
}

/** How much lighter a dark picture is shown, so that its lights are light: microscopes and night cameras. */
function exposure(whole) {
  const small = offscreen(48, 48), context = small.getContext("2d");
  context.drawImage(whole, 0, 0, 48, 48);
  const { data } = context.getImageData(0, 0, 48, 48), lights = [];
  for (let place = 0; place < data.length; place += 4) lights.push(Math.max(data[place], data[place + 1], data[place + 2]));
  lights.sort((a, b) => a - b);
  return Math.min(4, Math.max(1, 190 / Math.max(1, lights[Math.floor(0.97 * lights.length)])));
}

function stripes() {
  const tile = offscreen(12, 12), context = tile.getContext("2d");
  context.fillStyle = "rgba(20, 22, 24, 0.35)";
  context.fillRect(0, 0, 12, 12);
  context.strokeStyle = "rgba(255, 255, 255, 0.75)";
  context.lineWidth = 2.5;
  context.beginPath();
  for (const shift of [-12, 0, 12]) {
    context.moveTo(shift - 2, 14);
    context.lineTo(shift + 14, -2);
  }
  context.stroke();
  return tile;
}
