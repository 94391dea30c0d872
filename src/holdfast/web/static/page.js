"use strict";
// The table keeps nodes for the rows that are in view only; what comes from the server is set as text, never as markup.

const TEXTS = {
  en: {
    other: "中文", find: "Name or holder", waiting: "only with waiters", sort: "Sort by", pause: "Pause", go: "Continue", close: "Close",
    grid: "Locks", keys: "Keys: / to search, ↑ ↓ to choose, Enter for details, P to pause.",
    kind: "Kind", name: "Name", who: "Held by", for: "For", left: "Left", waiters: "Waiters", oldest: "Oldest", rate: "Grants/s",
    lock: "lock", rwlock: "shared lock", multilock: "multilock", semaphore: "semaphore", election: "election",
    live: "live", wait: "connecting", paused: "paused", bad: "not up to date",
    sums: (all, held, waiters, shown) => `${all} locks, ${held} held, ${waiters} waiters` + (shown < all ? ` · ${shown} shown` : ""),
    empty: "No lock is held or waited for.", nothing: "No lock fits.", free: "free", noTtl: "no ttl", over: "over",
    more: n => ` and ${n} more`, of: n => `${n} permits in all: `, odd: key => `odd key ${key}: `, gone: "its client has gone: ",
    server: (what, at) => `The server of the locks does not answer: ${what}. What is shown is of ${at}.`,
    page: at => `No connection to holdfast web. What is shown is of ${at}.`,
    stuck: "Deadlock: ", party: (who, holds, has, wants, time) => `${who} ${holds ? "holds" : "stands in the queue of"} ${has} and waits for ${wants} for ${time}`,
    most: time => `, for another ${time} at most`,
    cut: "There are more locks than are shown: give holdfast web a pattern.",
    holders: "Held by", queue: "Queue", nobody: "No one waits.", program: "Program", token: "Token",
    fence: "Last fencing token", place: "Place", waits: "Waits for", history: "Last minutes", noHistory: "Nothing has changed since holdfast web looks.",
    when: "Time", what: "What", queued: "Waiting", idle: "Not held or waited for now.", none: "unknown",
    picture: n => `Who held it in the last minutes: ${n} changes, listed below.`,
    does: { held: "held by", handed_on: "handed on to", released: "released by", expired: "expired", waiting: "joined", left: "left the queue",
      missed: "held between two looks", broken: "broken" },
    units: [["d", 86400], ["h", 3600], ["min", 60]], second: "s",
    take: "Take it away", takeSay: who => `This ends the lease of ${who}: its holder is told, and the next waiter gets the lock. Type who holds it to confirm.`,
    confirm: "Who holds it", secret: "Token of holdfast web", reason: "Reason", take2: "Break the lease", said: {},
  },
  zh: {
    other: "English", find: "锁名或持有者", waiting: "只看有人等待的", sort: "排序", pause: "暂停", go: "继续", close: "关闭",
    grid: "锁", keys: "按键：/ 搜索，↑ ↓ 选择，Enter 查看详情，P 暂停。",
    kind: "类型", name: "名称", who: "持有者", for: "已持有", left: "剩余", waiters: "等待", oldest: "最久等待", rate: "每秒授予",
    lock: "锁", rwlock: "共享锁", multilock: "multilock", semaphore: "信号量", election: "选举",
    live: "实时", wait: "正在连接", paused: "已暂停", bad: "不是最新",
    sums: (all, held, waiters, shown) => `共 ${all} 把锁，${held} 把被持有，${waiters} 个等待者` + (shown < all ? ` · 显示 ${shown} 把` : ""),
    empty: "没有锁被持有，也没有人在等待。", nothing: "没有符合条件的锁。", free: "空闲", noTtl: "无期限", over: "已到期",
    more: n => `，另有 ${n} 个`, of: n => `共 ${n} 个许可：`, odd: key => `异常的键 ${key}：`, gone: "其客户端已消失：",
    server: (what, at) => `锁所在的服务器没有应答：${what}。显示的是 ${at} 的情况。`,
    page: at => `与 holdfast web 的连接已断开。显示的是 ${at} 的情况。`,
    stuck: "死锁：", party: (who, holds, has, wants, time) => `${who} ${holds ? "持有" : "排在队列中："}${has}，等待${wants}，已 ${time}`,
    most: time => `，最多再等 ${time}`,
    cut: "锁太多，没有全部显示：请给 holdfast web 指定一个模式。",
    holders: "持有者", queue: "队列", nobody: "没有人在等待。", program: "程序", token: "令牌",
    fence: "最近的 fencing token", place: "位置", waits: "已等待", history: "最近几分钟", noHistory: "自 holdfast web 开始查看以来没有变化。",
    when: "时间", what: "事件", queued: "等待者", idle: "现在没有人持有，也没有人等待。", none: "未知",
    picture: n => `最近几分钟谁持有它：共 ${n} 次变化，列表见下。`,
    does: { held: "持有", handed_on: "移交给", released: "释放", expired: "到期", waiting: "开始等待", left: "离开队列",
      missed: "两次查看之间曾被持有", broken: "被收回" },
    units: [["天", 86400], ["小时", 3600], ["分", 60]], second: "秒",
    take: "收回", takeSay: who => `这会结束 ${who} 的租约：持有者会得到通知，下一个等待者得到这把锁。请输入持有者以确认。`,
    confirm: "持有者", secret: "holdfast web 的令牌", reason: "原因", take2: "收回租约",
    said: { "its holder has let go": "持有者已经放手。", "released on its behalf: it did not answer": "持有者没有应答，已代为释放。",
      "it is not held by that one any more": "它已不在那个持有者手中。", "this is not the token that holdfast web has printed": "这不是 holdfast web 的令牌。" },
  },
};
const language = document.documentElement.lang.startsWith("zh") ? "zh" : "en";
const T = TEXTS[language];
const $ = id => document.getElementById(id);
const COLUMNS = ["kind", "name", "who", "for", "left", "waiters", "oldest", "rate"];
const NUMBERS = new Set(["for", "left", "waiters", "oldest", "rate"]);
const OVERSCAN = 6;
const TIMELINE_MS = 300e3;

const rows = new Map();     // id → row as the server has told it
let order = [];             // the rows that are shown, sorted
let active = 0;             // the chosen one, by place
let activeId = null;
let skew = 0;               // server's clock − ours, ms
let shownAt = 0;            // when what is shown was so, by the server's clock
let state = { error: null, truncated: false };
let connected = false, paused = false, sortBy = "waiters", down = true;
let open = null;            // the lock whose details are shown
let detailSoon = 0;

// ---- texts ----

const HIDDEN = /[\p{C}\p{Zl}\p{Zp}]/gu;
// What a name has of control characters, also those that turn the direction of writing around, is shown and not done.
const plain = text => String(text).replace(HIDDEN, c => "\\u{" + c.codePointAt(0).toString(16) + "}");
const now = () => Date.now() + skew;
const span = ms => {
  const seconds = Math.max(0, ms / 1000);
  for (const [unit, size] of T.units) if (seconds >= 2 * size) return `${Math.round(seconds / size)} ${unit}`;
  return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} ${T.second}`;
};
const clock = ms => new Date(ms).toLocaleTimeString(document.documentElement.lang, { hour12: false });
const make = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};
const drawn = (tag, attributes = {}, text = "") => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
};
const set = (node, text) => { if (node.textContent !== text) node.textContent = text; };

// ---- one row ----

const noted = one => one.note ? `“${plain(one.note)}” ` : "";
const holder = row => {
  const odd = row.odd ? T.odd(plain(row.odd)) : "";
  if (!row.held) return odd + T.free;
  const some = odd + (row.gone ? T.gone : "") + (row.permits ? T.of(row.permits) : "");
  return some + noted(row) + plain(row.who ?? T.none) + (row.held > 1 ? T.more(row.held - 1) : "");
};
const cells = {
  kind: row => T[row.kind] ?? plain(row.kind),
  name: row => plain(row.name),
  who: holder,
  for: (row, at) => row.since ? span(at - row.since) : "–",
  left: (row, at) => !row.held ? "–" : row.until === null ? T.noTtl : row.until <= at ? T.over : span(row.until - at),
  waiters: row => String(row.waiters),
  oldest: (row, at) => row.oldest ? span(at - row.oldest) : "–",
  rate: row => row.rate ? (row.rate_at_least ? ">" : "") + row.rate.toFixed(1) : "–",
};
const keys = {  // by what is sorted: the greatest first, but for names
  kind: row => row.kind, name: row => row.name, who: row => row.who ?? "\uffff",
  for: row => row.since ? -row.since : -Infinity, left: row => row.held ? -(row.until ?? Infinity) : -Infinity,
  waiters: row => row.waiters, oldest: row => row.oldest ? -row.oldest : -Infinity, rate: row => row.rate,
};
const names = new Intl.Collator(document.documentElement.lang, { numeric: true });
const byName = (a, b) => names.compare(a.name, b.name) || names.compare(a.kind, b.kind);
const compared = (a, b) => {
  const [one, other] = [keys[sortBy](a), keys[sortBy](b)];
  if (one === other) return byName(a, b);
  return typeof one === "string" ? names.compare(one, other) || byName(a, b) : other - one || byName(a, b);
};

// ---- the table ----

const pool = [];            // nodes of rows, by place modulo their number
const grid = $("grid"), body = $("body");
let rowHeight = 44;

const line = place => {
  while (pool.length <= place) {
    const node = make("div", { role: "row" });
    for (const column of COLUMNS) {
      const cell = make("span", { role: "gridcell", class: column + (NUMBERS.has(column) ? " number" : "") });
      if (column === "for" || column === "left" || column === "waiters") cell.dataset.label = T[column];
      if (column === "name") cell.append(make("bdi"));
      node.append(cell);
    }
    node.hidden = true;
    node.addEventListener("click", () => { choose(Number(node.dataset.place)); show(order[active]); });
    pool.push(node);
    body.append(node);
  }
  return pool[place];
};

const arrange = () => {
  const text = $("filter").value.trim().toLowerCase(), waiting = $("waiting").checked;
  const fits = row => row && !(waiting && !row.waiters)
    && !(text && !row.name.toLowerCase().includes(text) && !(noted(row) + (row.who ?? "")).toLowerCase().includes(text));
  // What was sorted nearly is: sorting that again takes few comparisons.
  const known = new Set(order.map(row => row.id));
  order = order.map(row => rows.get(row.id)).filter(fits);
  for (const row of rows.values()) if (!known.has(row.id) && fits(row)) order.push(row);
  order.sort(compared);
  if (activeId !== null) {
    const place = order.findIndex(row => row.id === activeId);
    active = place >= 0 ? place : Math.min(active, Math.max(0, order.length - 1));
  }
};

const draw = () => {
  const height = grid.clientHeight, top = grid.scrollTop, at = now();
  const head = $("head").offsetHeight;
  const first = Math.max(0, Math.floor((top - head) / rowHeight) - OVERSCAN);
  const last = Math.min(order.length, Math.ceil((top + height) / rowHeight) + OVERSCAN);
  const count = Math.max(pool.length, last - first);
  body.style.height = order.length * rowHeight + "px";
  for (let place = first; place < first + count; place++) {
    const node = line(place % count), row = order[place];
    if (place >= last) { node.hidden = true; continue; }
    node.hidden = false;
    if (node.dataset.place !== String(place)) {
      node.dataset.place = place;
      node.id = "row-" + place;
      node.setAttribute("aria-rowindex", place + 2);
      node.style.transform = `translateY(${place * rowHeight}px)`;
    }
    COLUMNS.forEach((column, number) => {
      const cell = node.children[number];
      set(column === "name" ? cell.firstChild : cell, cells[column](row, at));
      if (column === "name" || column === "who") { const full = cell.textContent; if (cell.title !== full) cell.title = full; }
    });
    node.querySelector(".waiters").classList.toggle("queued", row.waiters > 0);
    node.classList.toggle("active", place === active);
    const fresh = row.changedAt > performance.now() - 1200;
    if (node.classList.contains("changed") !== fresh) node.classList.toggle("changed", fresh);
  }
  grid.setAttribute("aria-rowcount", order.length + 1);
  if (order.length) grid.setAttribute("aria-activedescendant", "row-" + active); else grid.removeAttribute("aria-activedescendant");
  const empty = $("empty");
  empty.hidden = order.length > 0 || down;
  set(empty, rows.size ? T.nothing : T.empty);
};

let asked = 0;
const refresh = () => { if (!asked) asked = requestAnimationFrame(() => { asked = 0; draw(); }); };

const stuckParty = one => {
  const named = (kind, name) => `${T[kind] ?? plain(kind)} '${plain(name)}'`;
  return T.party(plain(one.who), one.holds, named(one.held_kind, one.held_name), named(one.kind, one.name), span(one.waited_s * 1000))
    + (one.timeout_left_s === null ? "" : T.most(span(one.timeout_left_s * 1000))) + (one.where ? `, ${plain(one.where)}` : "");
};
const tell = () => {
  let held = 0, waiters = 0;
  for (const row of rows.values()) { held += row.held > 0; waiters += row.waiters; }
  set($("sums"), rows.size || !down ? T.sums(rows.size, held, waiters, order.length) : "");
  const bad = connected ? state.error : shownAt;
  const word = !shownAt && !bad ? "wait" : bad ? "bad" : paused ? "pause" : "live";
  $("state").dataset.state = word;
  set($("state"), word === "pause" ? T.paused : T[word]);
  const at = shownAt ? clock(shownAt) : "–";
  const stuck = (state.deadlocks ?? []).map(parties => T.stuck + parties.map(stuckParty).join("; ")).join("\n");
  const trouble = !connected && shownAt ? T.page(at) : state.error ? T.server(plain(state.error), at) : stuck || (state.truncated ? T.cut : "");
  $("trouble").hidden = !trouble;
  set($("trouble"), trouble);
};

// ---- what the server tells ----

const waitingMessages = [];
const take = message => {
  state = message;
  connected = true;
  if (message.at) { down = false; if (!message.error) { skew = message.at - Date.now(); shownAt = message.at; } }
  if (message.all) rows.clear();
  for (const row of message.rows) {
    const was = rows.get(row.id);
    const same = was && ["kind", "token", "held", "waiters"].every(key => was[key] === row[key]);  // it was renewed
    row.changedAt = message.all ? -1e9 : same ? was.changedAt : performance.now();
    rows.set(row.id, row);
  }
  for (const id of message.gone ?? []) rows.delete(id);
  if (open && (message.all || message.rows.some(row => row.name === open) || (message.gone ?? []).some(id => id.endsWith(":" + open)))) detail();
};
const settle = () => { arrange(); tell(); refresh(); };
const listen = () => {
  const events = new EventSource("api/events");
  events.onmessage = event => {
    const message = JSON.parse(event.data);
    if (paused && !message.all) { waitingMessages.push(message); if (waitingMessages.length > 5000) waitingMessages.shift(); return; }
    if (message.all) waitingMessages.length = 0;
    take(message);
    settle();
  };
  events.onerror = () => {
    connected = false;
    tell();
    if (events.readyState === EventSource.CLOSED) setTimeout(listen, 1000);
  };
};

// ---- keyboard and pointer ----

const choose = place => {
  if (!order.length) return;
  active = Math.max(0, Math.min(order.length - 1, place));
  activeId = order[active].id;
  const top = active * rowHeight, head = $("head").offsetHeight;
  if (top < grid.scrollTop) grid.scrollTop = top;
  else if (top + rowHeight + head > grid.scrollTop + grid.clientHeight) grid.scrollTop = top + rowHeight + head - grid.clientHeight;
  draw();
};
const move = event => {
  const page = Math.max(1, Math.floor(grid.clientHeight / rowHeight) - 2);
  const to = { ArrowDown: active + 1, ArrowUp: active - 1, PageDown: active + page, PageUp: active - page, Home: 0, End: order.length - 1 };
  if (event.key in to) { event.preventDefault(); choose(to[event.key]); }
  else if (event.key === "Enter" && order.length) { event.preventDefault(); show(order[active]); }
};
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("detail").open || /INPUT|SELECT/.test(event.target.tagName)) return;
  if (event.key === "/") { event.preventDefault(); $("filter").focus(); }
  else if (event.key === "p" || event.key === "P") $("pause").click();
  else if (event.target === grid) move(event);
  else if (event.target === document.body && /^(Arrow(Up|Down)|Enter)$/.test(event.key)) { grid.focus(); move(event); }
});
$("filter").addEventListener("keydown", event => { if (event.key === "ArrowDown" || event.key === "Enter") { event.preventDefault(); grid.focus(); } });
grid.addEventListener("scroll", refresh, { passive: true });
$("filter").addEventListener("input", () => { activeId = null; active = 0; grid.scrollTop = 0; settle(); });
$("waiting").addEventListener("change", () => { grid.scrollTop = 0; settle(); });
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", paused);
  set($("pause"), paused ? T.go : T.pause);
  if (!paused) waitingMessages.splice(0).forEach(take);
  settle();
});
const sorted = column => {
  sortBy = column;
  $("sort").value = column;
  for (const cell of $("head").children) {
    if (cell.dataset.column === column) cell.setAttribute("aria-sort", ["kind", "name", "who"].includes(column) ? "ascending" : "descending");
    else cell.removeAttribute("aria-sort");
    set(cell.firstChild, T[cell.dataset.column] + (cell.dataset.column === column ? " ▾" : ""));
  }
  settle();
};

// ---- details ----

const show = row => {
  if (!row) return;
  open = row.name;
  const title = $("title");
  title.replaceChildren(make("bdi", {}, plain(row.name)));
  $("about").replaceChildren();
  $("detail").showModal();
  detail();
};
const detail = () => {
  if (detailSoon) return;
  detailSoon = setTimeout(async () => {
    detailSoon = 0;
    const name = open;
    if (name === null) return;
    try {
      const answer = await fetch("api/locks?name=" + encodeURIComponent(name));
      const found = await answer.json();
      if (open === name) about(found.locks);
    } catch { /* the state above the table says so */ }
  }, 150);
};
const table = (heads, lines) => make("div", { class: "wide" }, make("table", {},
  make("thead", {}, make("tr", {}, ...heads.map(head => make("th", { scope: "col" }, head)))),
  make("tbody", {}, ...lines.map(cellsOf => make("tr", {}, ...cellsOf.map(cell => make("td", /^[\d:.]+(\s\S+)?$/.test(cell) ? { class: "short" } : {}, cell)))))));
const who = one => plain(one.who ?? T.none);

const about = locks => {
  const parts = [];
  if (!locks.length) parts.push(make("p", { class: "soft" }, T.idle));
  for (const lock of locks) {
    const at = now();
    parts.push(make("h3", {}, T[lock.kind] ?? plain(lock.kind)));
    if (!lock.held && !lock.waiters) parts.push(make("p", { class: "soft" }, T.idle));
    if (lock.held) {
      parts.push(table([T.holders, T.for, T.left, T.token], lock.holders.map(one => [noted(one) + who(one),
        one.since ? span(at - one.since) : "–", one.until === null ? T.noTtl : span(one.until - at), plain(one.token)])));
      if (lock.held > lock.holders.length) parts.push(make("p", { class: "soft" }, T.more(lock.held - lock.holders.length)));
    }
    if (lock.held && document.documentElement.dataset.break === "yes") for (const one of lock.holders) parts.push(taking(lock, one));
    if (lock.fencing_token) parts.push(make("p", { class: "soft" }, `${T.fence}: ${lock.fencing_token}`));
    if (lock.held || lock.waiters) parts.push(make("h3", {}, `${T.queue} (${lock.waiters})`));
    if (lock.waiters) {
      parts.push(table([T.place, T.program, T.waits], lock.queue.map((one, place) => [String(place + 1), who(one), span(at - one.since)])));
      if (lock.waiters > lock.queue.length) parts.push(make("p", { class: "soft" }, T.more(lock.waiters - lock.queue.length)));
    } else if (lock.held) parts.push(make("p", { class: "soft" }, T.nobody));
    parts.push(make("h3", {}, T.history));
    if (!lock.history.length) parts.push(make("p", { class: "soft" }, T.noHistory));
    else parts.push(make("div", { class: "wide" }, picture(lock, at)), table([T.when, T.what, T.program, T.queued], lock.history.slice(-50).reverse().map(each => [
      clock(each.at), make("span", { class: "chip", "data-what": each.what }, T.does[each.what] ?? plain(each.what)),
      each.who === null ? "–" : plain(each.who) + (each.reason ? ` (${plain(each.reason)})` : ""), String(each.waiters)])));
  }
  if (typing()) return;  // what is being filled in stays
  const place = $("detail").scrollTop;
  $("about").replaceChildren(...parts);
  for (const drawing of $("about").querySelectorAll("svg")) drawing.parentNode.scrollLeft = 1e6;  // the latest is at the right
  $("detail").scrollTop = place;
};

const typing = () => [...$("about").querySelectorAll("details")].some(form => form.open && form.contains(document.activeElement));
let secret = "";
const taking = (lock, one) => {
  const field = (label, attributes) => {
    const input = make("input", { type: "text", autocomplete: "off", spellcheck: "false", ...attributes });
    return [make("label", {}, label + " ", input), input];
  };
  const [first, confirm] = field(T.confirm, { placeholder: who(one) });
  const [second, reason] = field(T.reason, { maxlength: "150" });
  const [third, token] = field(T.secret, { type: "password" });
  const button = make("button", { type: "button", disabled: "" }, T.take2), said = make("p", { role: "status" });
  token.value = secret;
  confirm.addEventListener("input", () => { button.disabled = confirm.value.trim() !== who(one); });
  button.addEventListener("click", async () => {
    button.disabled = true;
    secret = token.value;
    try {
      const answer = await fetch("api/break", { method: "POST", headers: { "Content-Type": "application/json", "X-Holdfast-Token": secret },
        body: JSON.stringify({ kind: lock.kind, name: lock.name, token: one.token, confirm: one.who, reason: reason.value }) });
      const text = await answer.text();
      const told = answer.headers.get("content-type").includes("json") ? JSON.parse(text).said : text;
      set(said, T.said[told] ?? plain(told));
      if (!answer.ok) button.disabled = false; else document.activeElement.blur();
    } catch (error) { set(said, plain(error.message)); button.disabled = false; }
  });
  return make("details", { class: "take" }, make("summary", {}, `${T.take}: ${who(one)}`), make("p", {}, T.takeSay(who(one))), first, second, third, button, said);
};

// Who held it, from left to right: bars in turn full and empty, with names where they fit; above them the length of the queue.
const picture = (lock, at) => {
  const W = 800, H = 110, from = at - TIMELINE_MS, x = ms => Math.round((Math.max(ms, from) - from) / TIMELINE_MS * W);
  const svg = drawn("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": T.picture(lock.history.length) });
  const held = new Map(), bars = [];
  const most = Math.max(1, ...lock.history.map(each => each.waiters));
  const y = waiters => 40 - 30 * waiters / most;
  let path = "", last = null;
  for (const each of lock.history) {
    if (each.what === "held" || each.what === "handed_on") held.set(each.token, { ...each, at: each.since ?? each.at });
    else if (each.what === "released" || each.what === "expired" || each.what === "broken") {
      bars.push([held.get(each.token)?.at ?? from, each.at, each]);
      held.delete(each.token);
    } else if (each.what === "missed") bars.push([each.at, each.at, each]);
    path += path ? `H${x(each.at)}V${y(each.waiters)}` : `M${x(each.at)} ${y(each.waiters)}`;
    last = each;
  }
  for (const each of held.values()) bars.push([each.at, at, each]);
  bars.sort((a, b) => a[0] - b[0]);
  bars.filter(bar => bar[1] >= from).forEach(([begin, end, each], number) => {
    const left = x(begin), width = Math.max(2, x(end) - left), kind = number % 2 ? "other" : "span";
    const bar = drawn("rect", { x: left, y: 52, width, height: 28, class: kind });
    bar.append(drawn("title", {}, `${each.who === null ? "–" : plain(each.who)}, ${clock(begin)} – ${clock(end)}`));
    svg.append(bar);
    if (each.what === "expired" || each.what === "broken" || each.what === "missed")
      svg.append(drawn("line", { x1: x(end), x2: x(end), y1: 46, y2: 86, class: "bad" }));
    const label = plain(each.who ?? ""), fits = Math.floor(width / 6.6);
    if (fits > 6) svg.append(drawn("text", { x: left + 4, y: 70, class: number % 2 ? "off" : "on" }, label.length > fits ? label.slice(0, fits - 1) + "…" : label));
  });
  if (last) svg.append(drawn("path", { d: path + `H${x(at)}`, class: "queue" }), drawn("text", { x: 4, y: 12 }, `${T.queued}: ${last.waiters} (≤ ${most})`));
  svg.append(drawn("line", { x1: 0, x2: W, y1: 88, y2: 88, class: "axis" }));
  for (let minute = 0; minute <= 5; minute++) {
    const text = drawn("text", { x: Math.min(W - 4, Math.max(4, W - minute * W / 5)), y: 103, "text-anchor": minute === 0 ? "end" : minute === 5 ? "start" : "middle" }, clock(at - minute * 60e3));
    svg.append(text);
  }
  return svg;
};

// ---- begin ----

for (const node of document.querySelectorAll("[data-t]")) set(node, T[node.dataset.t]);
for (const node of document.querySelectorAll("[id][data-label]")) node.setAttribute("aria-label", T[node.dataset.label]);
const other = $("language");
set(other, T.other);
other.lang = other.hreflang = language === "en" ? "zh-CN" : "en";
other.href = "?lang=" + (language === "en" ? "zh" : "en");
for (const column of COLUMNS) {
  const button = make("button", { type: "button" }, T[column]);
  button.addEventListener("click", () => sorted(column));
  $("head").append(make("div", { role: "columnheader", class: NUMBERS.has(column) ? "number" : "", "data-column": column }, button));
  $("sort").append(make("option", { value: column }, T[column]));
}
$("sort").addEventListener("change", () => sorted($("sort").value));
$("close").addEventListener("click", () => $("detail").close());
$("detail").addEventListener("close", () => { open = null; grid.focus(); });
$("detail").addEventListener("click", event => { if (event.target === $("detail")) $("detail").close(); });
const measure = () => { rowHeight = parseInt(getComputedStyle(document.documentElement).getPropertyValue("--row"), 10) || 44; };
addEventListener("resize", () => { measure(); for (const node of pool) node.dataset.place = ""; refresh(); });
measure();
sorted("waiters");
tell();
listen();
setInterval(() => { if (!paused) refresh(); }, 500);
