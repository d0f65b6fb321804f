// The region in hand, and the way to the next one: fetching, saving and skipping.

import { Away, ask, bytes, picture, tell } from "./api.js";
import { Drafts } from "./drafts.js";

const RENEW = 120000; // milliseconds between two claims of the region in hand

/** Seconds in front of a region; those in which the page is not seen do not count. */
class Watch {
  constructor() {
    this.start();
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.go()));
  }

  start() {
    this.spent = 0;
    this.since = null;
    if (!document.hidden) this.go();
  }

  go() {
    this.since ??= performance.now();
  }

  stop() {
    this.spent = this.seconds * 1000;
    this.since = null;
  }

  get seconds() {
    return (this.spent + (this.since === null ? 0 : performance.now() - this.since)) / 1000;
  }
}

export class Desk {
  constructor(editor, view, tools) {
    Object.assign(this, { editor, view }, tools); // tools: who(), say(text, kind), changed()
    this.watch = new Watch();
    this.drafts = new Drafts();
    this.region = null;
    this.busy = false;
    this.isEmpty = false; // whether there was nothing to take when we last asked
    setInterval(() => this.renew(), RENEW);
  }

  /** One thing at a time; errors become a sentence, and what was drawn stays. */
  async alone(work) {
    if (this.busy) return false;
    this.busy = true;
    this.changed();
    try {
      await work();
      return true;
    } catch (error) {
      this.say(error instanceof Away ? "ralseg does not answer. What you drew is kept here." : error.message, "bad");
      if (!(error instanceof Away)) console.warn(error);
      return false;
    } finally {
      this.busy = false;
      this.changed();
    }
  }

  /** The region that is wanted most; none where others have the rest, or all is done. */
  next() {
    return this.alone(() => this.takeNext());
  }

  async takeNext() {
    const { region } = await tell("next", { who: this.who() });
    this.isEmpty = !region;
    if (region) await this.show(region);
    else this.putDown();
  }

  /** A certain region: to label it, or to correct it. */
  open(number) {
    return this.alone(async () => this.show(await tell(`regions/${number}/open`, { who: this.who() })));
  }

  async show(region) {
    const place = `regions/${region.region}`;
    const [photo, whole, mask, prediction, inside] = await Promise.all([
      picture(`${place}/view.png`), picture(`${place}/image.jpg`), bytes(`${place}/start`, { blind: Number(region.blind) }),
      region.has_prediction ? bytes(`${place}/prediction`) : null, region.has_shape ? bytes(`${place}/inside`) : null,
    ]);
    const [, , width, height] = region.box;
    const area = { mask, width, height, inside };
    this.region = { ...region, first: mask.slice(), prediction };
    this.editor.open(area);
    this.takeDraft(area);
    this.view.show(region, photo, whole, area);
    this.levels = {};
    this.watch.start();
    this.say(region.note, "");
    await this.fetchPatches();
    this.changed();
  }

  putDown() {
    this.region = null;
    this.editor.close();
    this.view.clear();
  }

  save() {
    if (!this.region) return;
    return this.alone(async () => {
      const { region, blind } = this.region, { mask } = this.editor.area, draft = this.draftOf;
      const cost = { seconds: this.watch.seconds.toFixed(1), clicks: this.editor.clicks };
      await tell(`regions/${region}/mask`, { who: this.who(), blind: Number(blind), ...cost }, mask);
      this.drafts.drop(draft);
      this.say("Saved", "good");
      document.body.dataset.saved = region;
      await this.takeNext();
    });
  }

  skip() {
    if (!this.region) return;
    return this.alone(async () => {
      const draft = this.draftOf;
      await tell(`regions/${this.region.region}/skip`, { who: this.who() });
      this.drafts.drop(draft);
      this.say("Put off: another region takes its place", "");
      await this.takeNext();
    });
  }

  reset() {
    if (this.region) this.editor.replace(this.region.prediction ?? this.region.first);
  }

  async renew() {
    if (!this.region || this.region.saved || document.hidden) return;
    const { region } = this.region;
    const said = await tell(`regions/${region}/claim`, { who: this.who() }).catch(() => ({ yours: true }));
    if (!said.yours && this.region?.region === region) this.say("Somebody else has taken up this region meanwhile.", "bad");
  }

  // -- patches ------------------------------------------------------------------------------------

  /** The patches of the tool "superpixel", in the size that the slider says; fetched when they are needed. */
  async fetchPatches() {
    const { editor, region } = this, level = Math.min(5, Math.floor(editor.sizeStep / 2));
    if (!region || editor.tool !== "superpixel" || this.level === level && editor.patches) return;
    this.level = level;
    this.levels[level] ??= bytes(`regions/${region.region}/superpixels/${level}`, {}, Uint16Array);
    const patches = await this.levels[level].catch(() => delete this.levels[level] && null); // asked for again later
    if (this.region !== region || this.level !== level) return;
    editor.patches = patches;
    editor.patchLevel = level;
    this.view.patchEdges = null;
    this.view.redraw();
    this.changed();
  }

  // -- drafts -------------------------------------------------------------------------------------

  get draftOf() {
    return `${location.pathname} ${this.region.region} ${this.region.version} ${this.region.blind}`;
  }

  /** Keep what was drawn, so that a browser that is closed, or a look at another region, loses nothing. */
  keepDraft() {
    if (this.region && this.editor.touched) this.drafts.keep(this.draftOf, this.editor.area.mask, this.editor.clicks);
  }

  takeDraft(area) {
    const draft = this.drafts.take(this.draftOf, area.mask.length);
    if (!draft) return;
    area.mask.set(draft.mask);
    this.editor.clicks = draft.clicks;
    this.editor.touched = true;
  }
}

const PAGE = crypto.getRandomValues(new Uint32Array(2)).join("-"); // tells this page from others

export const state = (who) => ask("state", { who, page: PAGE });

window.addEventListener("pagehide", () => navigator.sendBeacon(`api/leave?page=${PAGE}`));
