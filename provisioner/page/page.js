// Draws what /status says, every two seconds. Text from outside is only ever set as text, never as markup.

const EVERY = 2000; // ms between two looks
const PATIENCE = 8000; // ms until a look counts as failed
const $ = (id) => document.getElementById(id);

const ROLES = {
  alone: ["Working alone", "No election and no sharing: this instance has the whole fleet."],
  leader: ["Leader", "This instance does the work; others stand by."],
  standby: ["Standing by", "Another instance leads. This one takes over when that one stops."],
  sharing: ["Sharing the work", "Each instance has its part of the fleet."],
  aside: ["Standing aside", "Another instance with our identity was here first. Give each an identity of its own."],
  unknown: ["Paused", "The election can't be reached, so nobody can tell who leads."],
};

const REFUSALS = {
  bad_identity: "a name that can't be a server's",
  roster_full: "too many servers are known",
  bad_event: "what came as a startup event is none",
  bad_reply: "what came as an answer to a discovery is none",
};

let status = null; // the last answer
let answeredAt = 0; // our clock, ms, of that answer
let failedSince = 0; // our clock, ms; 0 while answers come
let paused = false;
let timer = 0;
let asking = null;

// --- words ------------------------------------------------------------------------------------------------------------

function age(seconds) {
  if (seconds < 0.1) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

const exact = (seconds) => (seconds < 0.1 ? `${seconds * 1000} ms` : `${seconds} s`);
const number = (value) => value.toLocaleString("en-GB");
const plural = (count, one, many) => `${number(count)} ${count === 1 ? one : many}`;
const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");

// --- elements ---------------------------------------------------------------------------------------------------------

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function write(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

function word(outcome) {
  const box = $(`reason-${outcome}`);
  if (!box) return document.createTextNode(outcome);
  const [, cause, , cure] = [...box.querySelectorAll("h3, p")].map((one) => one.textContent);
  const made = element("button", { type: "button", class: "word", popovertarget: box.id, title: `${cause} ${cure}` });
  made.textContent = outcome;
  return made;
}

function tone(outcome) {
  if (outcome === "provisioned") return "good";
  return $(`reason-${outcome}`)?.classList.contains("error") === false ? "mild" : "bad";
}

// Rows and items stay the same elements while they stand for the same thing: focus, selection and scroll survive.
function keep(parent, items, key, make, update) {
  const known = parent.kept ?? new Map();
  const kept = new Map();
  let place = parent.firstElementChild;
  for (const item of items) {
    const id = key(item);
    const one = known.get(id) ?? make(item);
    kept.set(id, one);
    update(one, item);
    if (one === place) place = place.nextElementSibling;
    else parent.insertBefore(one, place);
  }
  for (const [id, one] of known) if (kept.get(id) !== one) one.remove();
  parent.kept = kept;
  const none = $(`${parent.id}-none`);
  if (none) none.hidden = items.length > 0;
  const table = parent.closest("table");
  if (table) table.hidden = items.length === 0;
}

function row(...classes) {
  const [head, ...rest] = classes;
  return element("tr", {}, element("th", { scope: "row", class: head }), ...rest.map((name) => element("td", { class: name })));
}

// --- parts of the page ------------------------------------------------------------------------------------------------

function condition(now) {
  const [title, meaning] = ROLES[status.role] ?? [status.role, ""];
  const stale = failedSince > 0;
  let state = "good";
  let headline = `${title}, connected`;
  let explained = `${meaning} ${status.election ? `${status.election}.` : ""} Broker ${status.broker}.`;
  if (stale) {
    state = "bad";
    headline = "The provisioner does not answer";
    explained = `Since ${clock(failedSince)}. What you see is from ${clock(answeredAt)}. Trying again every few seconds.`;
  } else if (!status.connected) {
    state = "bad";
    headline = "Not connected to the broker";
    explained = `${status.connection_error || "No broker has answered yet"}. Trying again. Role: ${title.toLowerCase()}.`;
  } else if (status.paused) {
    state = status.role === "standby" ? "idle" : "mild";
    headline = status.role === "standby" ? "Standing by, paused" : `${title}, not working`;
  }
  document.body.dataset.state = state;
  document.body.classList.toggle("stale", stale);
  write($("headline"), headline);
  write($("explained"), explained.replace(/\s+/g, " ").trim());
  write($("said"), headline);
  const name = status.identity || "choria-provisioner";
  document.title = state === "bad" ? `${headline} - ${name}` : `${name} - choria-provisioner`;
  write($("who"), status.site ? `${status.identity}, site ${status.site}` : status.identity);
  write($("version"), `Version ${status.version}, running for ${age(status.now - status.started_at + now)}.`);
}

function freshness() {
  if (paused) write($("updated"), `Paused at ${clock(answeredAt)}`);
  else if (failedSince) write($("updated"), `No answer since ${clock(failedSince)}`);
  else write($("updated"), `Updated ${clock(answeredAt)}`);
}

function numbers() {
  const { servers, outcomes } = status;
  const errors = Object.entries(outcomes).reduce((sum, [name, count]) => (tone(name) === "bad" ? sum + count : sum), 0);
  const shown = [
    ["Waiting", number(servers.waiting), `looks every ${age(status.interval)}`],
    ["At work", number(servers.working), `of ${plural(status.workers, "worker", "workers")}`],
    ["Resting", number(servers.resting), "done with for now"],
    ["Provisioned", number(outcomes.provisioned ?? 0), "since the start"],
    ["Errors", number(errors), "since the start", errors ? "bad" : ""],
  ];
  keep($("numbers"), shown, (one) => one[0], ([name]) =>
    element("div", {}, element("dt", {}, name), element("dd", { class: "value" }), element("dd", { class: "note" })),
  (one, [, value, note, mood]) => {
    one.className = mood ?? "";
    write(one.children[1], value);
    write(one.children[2], note);
  });
}

function fleet(now) {
  const part = $("filter").value.trim();
  const named = (one) => one.identity.includes(part);
  const work = status.at_work.filter(named);
  const waiting = status.waiting.filter(named);
  const recent = status.recent.filter(named).reverse();

  keep($("work"), work, (one) => one.identity, () => row("server", "", "time", "time"), (one, item) => {
    write(one.children[0], item.identity);
    write(one.children[1], item.step || "starting");
    write(one.children[2], age(item.step_age + now));
    write(one.children[3], age(item.age + now));
  });
  keep($("waiting"), waiting, (one) => one.identity, () => row("server", "", "time"), (one, item) => {
    write(one.children[0], item.identity);
    if (one.last !== item.last) {
      one.last = item.last;
      one.children[1].replaceChildren(item.last ? word(item.last) : "first time");
      one.children[1].className = item.last ? tone(item.last) : "quiet";
    }
    write(one.children[2], age(item.age + now));
  });
  keep($("recent"), recent, (one) => `${one.at} ${one.identity} ${one.attempt}`, (item) => {
    const made = row("server", tone(item.outcome), "time wide", "time");
    const said = [item.step, item.text, item.reason && `(${item.reason})`].filter(Boolean).join(": ");
    made.children[1].append(word(item.outcome));
    if (item.attempt > 1) made.children[1].append(element("span", { class: "try" }, ` try ${item.attempt}`));
    if (said) made.children[1].append(element("p", { class: "said" }, said));
    return made;
  }, (one, item) => {
    write(one.children[0], item.identity);
    write(one.children[2], age(item.seconds));
    const ago = status.now - item.at + now;
    write(one.children[3], ago < 1 ? "just now" : `${age(ago)} ago`);
  });

  const all = status.servers;
  write($("work-count"), part ? `${work.length} of ${number(all.working)}` : number(all.working));
  const first = waiting.length < all.waiting && !part ? `first ${waiting.length} of ` : part ? `${waiting.length} of ` : "";
  write($("waiting-count"), first + number(all.waiting));
  write($("recent-count"), String(recent.length));
  for (const id of ["work", "waiting", "recent"]) {
    const none = $(`${id}-none`);
    none.dataset.usual ??= none.textContent;
    write(none, part ? `No name here has “${part}” in it.` : none.dataset.usual);
  }
  const found = $("found");
  found.hidden = !part || Boolean(work.length + waiting.length + recent.length) || !status.asked;
  if (!found.hidden) write(found, told(status.asked));
}

function told(server) {
  if (server.state === "unknown" && !server.last) return `${server.identity} is not known here.`;
  const last = server.last ? ` Last outcome: ${server.last.outcome}, ${age(status.now - server.last.at)} ago.` : "";
  return `${server.identity} is ${server.state}.${last}`;
}

function bars(id, counts, label) {
  const shown = Object.entries(counts).filter(([, count]) => count > 0).sort((a, b) => b[1] - a[1]);
  const most = Math.max(1, ...shown.map(([, count]) => count));
  keep($(id), shown, ([name]) => name, ([name]) =>
    element("li", {}, label(name), element("span", { class: "amount" }), element("span", { class: "track", "aria-hidden": "true" }, element("i"))),
  (one, [, count]) => {
    write(one.children[1], number(count));
    one.children[2].firstChild.style.inlineSize = `${Math.max(0.5, (100 * count) / most)}%`;
  });
}

// --- plots ------------------------------------------------------------------------------------------------------------

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 240;
const HEIGHT = 56;

function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function plots() {
  const { bounds, helper, rpc } = status.timings;
  const shown = [["helper", helper], ...Object.entries(rpc)]
    .map(([name, timing]) => ({ name, ...timing, total: timing.calls.reduce((a, b) => a + b, 0) }))
    .filter((one) => one.total > 0);
  keep($("plots"), shown, (one) => one.name, ({ name, calls }) => {
    const drawing = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT + 14}`, role: "img" });
    const width = WIDTH / calls.length;
    calls.forEach((_, place) => drawing.append(shape("rect", { x: place * width + 1, width: width - 2, rx: 1.5 })));
    drawing.append(shape("line", { x1: 0, x2: WIDTH, y1: HEIGHT + 0.5, y2: HEIGHT + 0.5 }));
    for (const bound of [0.01, 0.1, 1, 10]) {
      const text = shape("text", { x: (bounds.indexOf(bound) + 1) * width, y: HEIGHT + 12, "text-anchor": "middle" });
      text.textContent = exact(bound);
      if (bounds.includes(bound)) drawing.append(text);
    }
    const [agent, action] = name.split("#");
    const title = element("figcaption", {}, element("strong", {}, action ?? agent), action ? ` ${agent}` : "");
    return element("figure", {}, title, drawing, element("p"));
  }, (one, { name, calls, seconds, total, errors }) => {
    const most = Math.max(...calls);
    const drawing = one.children[1];
    calls.forEach((count, place) => {
      const height = count ? Math.max(2, (count / most) * (HEIGHT - 2)) : 0;
      drawing.children[place].setAttribute("y", HEIGHT - height);
      drawing.children[place].setAttribute("height", height);
    });
    let sum = 0;
    const within = calls.findIndex((count) => (sum += count) >= 0.95 * total);
    const limit = within < bounds.length ? `95 % within ${exact(bounds[within])}` : `over 5 % above ${exact(bounds.at(-1))}`;
    const failed = errors ? `, ${plural(errors, "error", "errors")}` : "";
    const said = `${number(total)} ${name === "helper" ? "runs" : "calls"}, mean ${age(seconds / total)}, ${limit}${failed}`;
    write(one.children[2], said);
    if (drawing.getAttribute("aria-label") !== `${name}: ${said}`) drawing.setAttribute("aria-label", `${name}: ${said}`);
  });
}

// --- asking -----------------------------------------------------------------------------------------------------------

function draw() {
  if (!status) return;
  const now = paused || failedSince ? 0 : (Date.now() - answeredAt) / 1000;
  condition(now);
  freshness();
  numbers();
  fleet(now);
  bars("outcomes", status.outcomes, (name) => element("span", { class: tone(name) }, word(name)));
  bars("refused", status.refused_sightings, (name) =>
    element("span", {}, element("code", {}, name), element("span", { class: "quiet" }, ` ${REFUSALS[name] ?? ""}`)));
  plots();
}

async function fetched(query, signal) {
  const answer = await fetch(`status${query}`, { signal, cache: "no-store" });
  if (!answer.ok) throw new Error(`/status answers ${answer.status}`);
  return answer.json();
}

async function look() {
  clearTimeout(timer);
  asking?.abort();
  const mine = (asking = new AbortController());
  const giveUp = setTimeout(() => mine.abort("late"), PATIENCE);
  const part = $("filter").value.trim();
  try {
    const found = await fetched(part ? `?name=${encodeURIComponent(part)}` : "", mine.signal);
    const listed = found.at_work.length + found.waiting.length + found.recent.length;
    if (part && !listed) found.asked = (await fetched(`?server=${encodeURIComponent(part)}`, mine.signal)).server;
    status = found;
    answeredAt = Date.now();
    failedSince = 0;
  } catch {
    if (mine !== asking) return; // a later look took over
    failedSince ||= Date.now();
    if (!status) {
      document.body.dataset.state = "bad";
      write($("headline"), "The provisioner does not answer");
      write($("said"), "The provisioner does not answer");
      write($("updated"), `No answer since ${clock(failedSince)}`);
    }
  } finally {
    clearTimeout(giveUp);
  }
  if (mine !== asking) return;
  draw();
  if (!paused) timer = setTimeout(look, EVERY);
}

let typing = 0;
$("filter").addEventListener("input", () => {
  draw();
  clearTimeout(typing);
  typing = setTimeout(look, 250);
});
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  if (paused) {
    clearTimeout(timer);
    draw();
  } else look();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !paused) look();
  else clearTimeout(timer);
});
look();
