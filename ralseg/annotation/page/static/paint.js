// Painting: pure functions on a mask, a Uint8Array of class numbers, row by row. No colour is ever read back.
// Sums are of whole numbers, so that a pixel is either painted or not, on every machine alike.

export const SIZES = [1, 3, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97];

/** A stroke from one pixel to another: all pixels whose middles lie within size / 2 of the line between their middles. */
export function paintLine(area, from, to, size, value) {
  const reach = (size - 1) / 2;
  const left = Math.max(0, Math.min(from.x, to.x) - reach), right = Math.min(area.width - 1, Math.max(from.x, to.x) + reach);
  const top = Math.max(0, Math.min(from.y, to.y) - reach), bottom = Math.min(area.height - 1, Math.max(from.y, to.y) + reach);
  const dx = to.x - from.x, dy = to.y - from.y;
  for (let y = top; y <= bottom; y++) {
    for (let x = left; x <= right; x++) {
      if (isNear(x - from.x, y - from.y, dx, dy, size * size)) put(area, y * area.width + x, value);
    }
  }
}

function isNear(x, y, dx, dy, reach) {
  const length = dx * dx + dy * dy, along = x * dx + y * dy;
  if (along <= 0) return 4 * (x * x + y * y) <= reach;
  if (along >= length) return 4 * ((x - dx) ** 2 + (y - dy) ** 2) <= reach;
  return 4 * (x * dy - y * dx) ** 2 <= reach * length;
}

function put(area, place, value) {
  if (!area.inside || area.inside[place]) area.mask[place] = value;
}

/** The connected pixels of one class around a pixel. */
export function paintConnected(area, from, value) {
  const { mask, width, height, inside } = area, first = from.y * width + from.x, before = mask[first];
  if (before === value || (inside && !inside[first])) return;
  const open = [first];
  while (open.length) {
    const place = open.pop();
    if (mask[place] !== before || (inside && !inside[place])) continue;
    mask[place] = value;
    const x = place % width;
    if (x > 0) open.push(place - 1);
    if (x < width - 1) open.push(place + 1);
    if (place >= width) open.push(place - width);
    if (place < width * (height - 1)) open.push(place + width);
  }
}

/** All pixels. */
export function paintAll(area, value) {
  for (let place = 0; place < area.mask.length; place++) put(area, place, value);
}

/** The pixels of the patch that a pixel belongs to. */
export function paintPatch(area, patches, from, value) {
  const patch = patches[from.y * area.width + from.x];
  for (let place = 0; place < patches.length; place++) if (patches[place] === patch) put(area, place, value);
}

/** The pixels whose middles lie inside of a polygon; its corners are corners of pixels. */
export function paintPolygon(area, corners, value) {
  for (let y = 0; y < area.height; y++) {
    const crossings = [];
    corners.forEach((a, i) => {
      const b = corners[(i + 1) % corners.length];
      if ((a.y <= y) !== (b.y <= y)) crossings.push(a.x + ((y + 0.5 - a.y) * (b.x - a.x)) / (b.y - a.y));
    });
    crossings.sort((a, b) => a - b);
    for (let i = 0; i + 1 < crossings.length; i += 2) {
      const start = Math.max(0, Math.ceil(crossings[i] - 0.5)), end = Math.min(area.width, Math.ceil(crossings[i + 1] - 0.5));
      for (let x = start; x < end; x++) put(area, y * area.width + x, value);
    }
  }
}

/** How many pixels have a value. */
export function count(mask, value) {
  let found = 0;
  for (const each of mask) if (each === value) found++;
  return found;
}

/** Masks as they were: undo and redo. */
export class History {
  constructor(most = 60) {
    this.most = most;
    this.clear();
  }

  clear() {
    this.before = [];
    this.after = [];
  }

  /** Call before the mask is changed. */
  keep(mask) {
    this.before.push(mask.slice());
    if (this.before.length > this.most) this.before.shift();
    this.after = [];
  }

  /** Forget what was kept last: nothing came of it. */
  drop() {
    this.before.pop();
  }

  undo(mask) {
    return this.swap(this.before, this.after, mask);
  }

  redo(mask) {
    return this.swap(this.after, this.before, mask);
  }

  swap(from, to, mask) {
    if (!from.length) return false;
    to.push(mask.slice());
    mask.set(from.pop());
    return true;
  }
}
