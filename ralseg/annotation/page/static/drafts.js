// Drafts: what was drawn and not saved yet, kept in the browser until its region is in hand again.

const KEY = "ralseg draft";
const MOST = 8; // regions, of all runs at this address: what is left behind must not fill the browser's store
const PAUSE = 300; // milliseconds without a change before a draft is written

export class Drafts {
  constructor() {
    window.addEventListener("pagehide", () => this.write());
  }

  /** Keep a mask, soon; `of` names its region. */
  keep(of, mask, clicks) {
    if (this.waiting?.of !== of) this.write();
    this.waiting = { of, mask, clicks };
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.write(), PAUSE);
  }

  /** Write what waits to be written. */
  write() {
    clearTimeout(this.timer);
    if (!this.waiting) return;
    const { of, mask, clicks } = this.waiting;
    this.waiting = null;
    let text = "";
    for (let start = 0; start < mask.length; start += 8192) text += String.fromCharCode(...mask.subarray(start, start + 8192));
    this.store([{ of, clicks, mask: btoa(text) }, ...this.all().filter((draft) => draft.of !== of)].slice(0, MOST));
  }

  /** What was drawn in a region, or null. */
  take(of, length) {
    this.write();
    const draft = this.all().find((each) => each.of === of);
    if (!draft) return null;
    const mask = Uint8Array.from(atob(draft.mask), (letter) => letter.charCodeAt(0));
    return mask.length === length ? { mask, clicks: draft.clicks } : null;
  }

  /** A region is saved or put off: its draft is needed no more. */
  drop(of) {
    if (this.waiting?.of === of) this.waiting = null;
    this.store(this.all().filter((draft) => draft.of !== of));
  }

  /** All drafts, the newest first. */
  all() {
    try {
      const found = JSON.parse(localStorage.getItem(KEY));
      return Array.isArray(found) ? found : [];
    } catch {
      return [];
    }
  }

  /** Write them, as many of the newest as this browser's store can hold. */
  store(drafts) {
    try {
      if (drafts.length) localStorage.setItem(KEY, JSON.stringify(drafts));
      else localStorage.removeItem(KEY);
    } catch {
      if (drafts.length) this.store(drafts.slice(0, -1));
    }
  }
}
