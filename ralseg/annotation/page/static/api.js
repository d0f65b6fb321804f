// What the page says to ralseg. All addresses lie below the page's own, which has the token in it.

export class Away extends Error {}

/** An answer as JSON; an error is a sentence for people. */
export async function ask(path, values = {}, body = null) {
  const reply = await send(path, values, body);
  return reply.json();
}

/** Bytes, one or two each number. */
export async function bytes(path, values = {}, kind = Uint8Array) {
  return new kind(await (await send(path, values)).arrayBuffer());
}

export async function picture(path) {
  return createImageBitmap(await (await send(path)).blob());
}

/** Changes something: saves, skips, claims. */
export const tell = (path, values = {}, body = new Uint8Array(0)) => ask(path, values, body);

async function send(path, values = {}, body = null) {
  const query = new URLSearchParams(values).toString();
  let reply;
  try {
    reply = await fetch(`api/${path}${query ? `?${query}` : ""}`, {
      method: body === null ? "GET" : "POST", body, cache: "no-store",
      headers: body === null ? {} : { "Content-Type": "application/octet-stream" },
    });
  } catch {
    throw new Away("ralseg does not answer");
  }
  if (reply.ok) return reply;
  const said = await reply.json().catch(() => ({}));
  throw new Error(said.error || `ralseg answers ${reply.status}`);
}
